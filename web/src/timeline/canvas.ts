// The canvas and the theme's colors, as drawing needs them.
import { token } from "../theme";
import type { Colors } from "./scene";

/** Fits a canvas to its box and the screen's resolution. */
export function prepared(canvas: HTMLCanvasElement): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

let colors: { theme: string | undefined; found: Colors } | null = null;

/** The theme's colors; reading them from the document on each frame would be slow. */
export function readColors(): Colors {
  const theme = document.documentElement.dataset["theme"];
  if (colors === null || colors.theme !== theme) {
    colors = {
      theme,
      found: {
        background: token("--background"),
        surface: token("--surface"),
        sunken: token("--surface-sunken"),
        border: token("--border"),
        grid: token("--grid"),
        text: token("--text"),
        muted: token("--text-muted"),
        accent: token("--accent"),
        bad: token("--bad"),
        font: token("--font"),
      },
    };
  }
  return colors.found;
}
