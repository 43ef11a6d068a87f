// Converts mouse, trackpad and touch gestures to movements of the timeline.
import { type Window, panBy, width, xToTime } from "./geometry";
import { GUTTER } from "./scene";

/** Where the pointer is: on the canvas, and on the screen. */
export interface Pointer {
  x: number;
  y: number;
  clientX: number;
  clientY: number;
}

/** What gestures act on. */
export interface Movable {
  currentWindow(): Window;
  currentScroll(): number;
  /** The time range of the minimap. */
  mapWindow(): Window;
  lanePixels(): number;
  show(window: Window, keepsFollowing?: boolean): void;
  zoomAround(time: number, factor: number): void;
  zoom(factor: number): void;
  scrollTo(top: number): void;
  onPointer(pointer: Pointer | null): void;
  /** The user moves the content: the item under the pointer changes. */
  onMoved(): void;
  onSelect(range: Window): void;
  onClick(x: number, y: number): void;
  onDoubleClick(x: number, y: number): void;
  onResize(): void;
}

interface Drag {
  kind: "pan" | "range" | "map";
  pointer: number;
  x: number;
  y: number;
  window: Window;
  scrollTop: number;
  hasMoved: boolean;
}

const WHEEL_SPEED = 0.0016;
const CLICK_PIXELS = 4;

export class Gestures {
  private drag: Drag | null = null;
  private readonly pinch = new Map<number, number>();
  private readonly cleanup: (() => void)[] = [];

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly map: HTMLCanvasElement,
    private readonly view: Movable,
  ) {
    this.listen();
  }

  destroy(): void {
    for (const undo of this.cleanup) undo();
  }

  /** Whether the user is dragging. */
  isDragging(): boolean {
    return this.drag !== null;
  }

  private listen(): void {
    const on = <K extends keyof HTMLElementEventMap>(
      target: HTMLElement,
      type: K,
      listener: (event: HTMLElementEventMap[K]) => void,
    ) => {
      target.addEventListener(type, listener, { passive: false });
      this.cleanup.push(() => target.removeEventListener(type, listener));
    };
    on(this.canvas, "wheel", (event) => this.onWheel(event));
    on(this.canvas, "pointerdown", (event) => this.onDown(event));
    on(this.canvas, "pointermove", (event) => this.onMove(event));
    on(this.canvas, "pointerup", (event) => this.onUp(event));
    on(this.canvas, "pointercancel", (event) => this.onUp(event));
    on(this.canvas, "pointerleave", () => this.view.onPointer(null));
    on(this.canvas, "dblclick", (event) => this.view.onDoubleClick(event.offsetX, event.offsetY));
    on(this.map, "pointerdown", (event) => this.onMapDown(event));
    on(this.map, "pointermove", (event) => this.onMapMove(event));
    on(this.map, "pointerup", (event) => this.onUp(event));
    const observer = new ResizeObserver(() => this.view.onResize());
    observer.observe(this.canvas);
    this.cleanup.push(() => observer.disconnect());
  }

  private timeAt(x: number): number {
    return xToTime(x - GUTTER, this.view.currentWindow(), this.view.lanePixels());
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 20 : 1;
    if (event.offsetX < GUTTER || event.altKey)
      return this.view.scrollTo(this.view.currentScroll() + event.deltaY * unit);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || (event.shiftKey && !event.ctrlKey)) {
      const distance = (event.deltaX === 0 ? event.deltaY : event.deltaX) * unit;
      return this.moveBy(this.view.currentWindow(), distance);
    }
    // Trackpads report a pinch as a wheel with Ctrl and small steps.
    const factor = Math.exp(event.deltaY * unit * (event.ctrlKey ? WHEEL_SPEED * 5 : WHEEL_SPEED));
    this.view.onPointer(pointerOf(event));
    this.view.zoom(factor);
  }

  private moveBy(from: Window, pixels: number): void {
    this.view.show(panBy(from, (pixels / this.view.lanePixels()) * width(from)), pixels === 0);
  }

  private onDown(event: PointerEvent): void {
    this.pinch.set(event.pointerId, event.offsetX);
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = {
      kind: event.shiftKey ? "range" : "pan",
      pointer: event.pointerId,
      x: event.offsetX,
      y: event.offsetY,
      window: this.view.currentWindow(),
      scrollTop: this.view.currentScroll(),
      hasMoved: false,
    };
  }

  private onMove(event: PointerEvent): void {
    if (this.pinch.size === 2 && this.pinch.has(event.pointerId)) return this.onPinch(event);
    const drag = this.drag;
    if (drag === null || drag.pointer !== event.pointerId) return this.view.onPointer(pointerOf(event));
    const distance = event.offsetX - drag.x;
    if (!drag.hasMoved && Math.hypot(distance, event.offsetY - drag.y) < CLICK_PIXELS) return;
    drag.hasMoved = true;
    if (drag.kind === "range") {
      const [one, other] = [this.timeAt(drag.x), this.timeAt(event.offsetX)];
      this.view.onSelect({ start: Math.min(one, other), end: Math.max(one, other) });
      return;
    }
    this.view.onMoved();
    this.view.scrollTo(drag.scrollTop - (event.offsetY - drag.y));
    this.moveBy(drag.window, -distance);
  }

  private onPinch(event: PointerEvent): void {
    const others = [...this.pinch].filter(([pointer]) => pointer !== event.pointerId).map(([, x]) => x);
    const other = others[0] ?? 0;
    const before = Math.abs((this.pinch.get(event.pointerId) ?? 0) - other);
    const after = Math.abs(event.offsetX - other);
    this.pinch.set(event.pointerId, event.offsetX);
    if (this.drag !== null) this.drag.hasMoved = true;
    if (before < 8 || after < 8) return;
    this.view.zoomAround(this.timeAt((event.offsetX + other) / 2), before / after);
  }

  private onUp(event: PointerEvent): void {
    this.pinch.delete(event.pointerId);
    const drag = this.drag;
    this.drag = null;
    if (drag === null || drag.hasMoved || drag.kind === "map" || event.type === "pointercancel") return;
    this.view.onClick(event.offsetX, event.offsetY);
  }

  private onMapDown(event: PointerEvent): void {
    this.map.setPointerCapture(event.pointerId);
    this.drag = {
      kind: "map",
      pointer: event.pointerId,
      x: event.offsetX,
      y: 0,
      window: this.view.currentWindow(),
      scrollTop: 0,
      hasMoved: true,
    };
    this.onMapMove(event);
  }

  private onMapMove(event: PointerEvent): void {
    if (this.drag?.kind !== "map") return;
    const window = this.view.currentWindow();
    const middle = xToTime(event.offsetX, this.view.mapWindow(), this.map.clientWidth);
    this.view.show(panBy(window, middle - (window.start + window.end) / 2));
  }
}

function pointerOf(event: MouseEvent): Pointer {
  return { x: event.offsetX, y: event.offsetY, clientX: event.clientX, clientY: event.clientY };
}
