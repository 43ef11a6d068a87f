// The canvas and the theme's colours, as drawing needs them.
import { token } from "../theme";
import type { Colours } from "./scene";

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

let colours: { theme: string | undefined; found: Colours } | null = null;

/** The theme's colours; reading them from the document on each picture would be slow. */
export function readColours(): Colours {
  const theme = document.documentElement.dataset["theme"];
  if (colours === null || colours.theme !== theme) {
    colours = {
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
  return colours.found;
}
