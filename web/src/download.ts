// Saves visible data as text, or a chart as an image.
import { token } from "./theme";

/** Saves a file. */
export function saveBlob(name: string, blob: Blob): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = fileName(name);
  link.click();
  // The browser needs the URL until it has begun to write.
  window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A name that every file system accepts. */
export function fileName(text: string): string {
  return text.replaceAll(/[^\w.-]+/g, "_").slice(0, 120);
}

export function saveText(name: string, text: string, type: string): void {
  saveBlob(name, new Blob([text], { type }));
}

export interface LegendEntry {
  label: string;
  color: string;
}

const HEAD = 28;
const LINE = 18;

/** Saves a chart's canvas as PNG, with its title, its legend and the page's background. */
export function savePicture(
  name: string,
  canvas: HTMLCanvasElement,
  title: string,
  legend: readonly LegendEntry[],
): void {
  const ratio = window.devicePixelRatio;
  const columns = Math.max(1, Math.floor(canvas.width / ratio / 240));
  const shown = legend.slice(0, columns * 8);
  const rows = Math.ceil(shown.length / columns);
  const picture = document.createElement("canvas");
  picture.width = canvas.width;
  picture.height = canvas.height + (HEAD + rows * LINE + 8) * ratio;
  const context = picture.getContext("2d");
  if (context === null) return;
  context.fillStyle = token("--surface");
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(canvas, 0, HEAD * ratio);
  context.scale(ratio, ratio);
  context.textBaseline = "middle";
  context.fillStyle = token("--text");
  context.font = `600 13px ${token("--font")}`;
  context.fillText(title, 10, HEAD / 2);
  context.font = `11px ${token("--font")}`;
  shown.forEach((entry, index) => {
    const x = 12 + (index % columns) * 240;
    const y = HEAD + canvas.height / ratio + LINE * (Math.floor(index / columns) + 0.5);
    context.fillStyle = entry.color;
    context.fillRect(x, y - 5, 9, 9);
    context.fillStyle = token("--text-muted");
    context.fillText(entry.label, x + 15, y, 215);
  });
  picture.toBlob((blob) => {
    if (blob !== null) saveBlob(name, blob);
  }, "image/png");
}
