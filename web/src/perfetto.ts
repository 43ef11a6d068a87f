// Traces of a run for Perfetto: saved as a file, or passed to the viewer in another tab.
import { type TraceQuery, loadTrace } from "./api";
import { fileName, saveBlob } from "./download";

const VIEWER = "https://ui.perfetto.dev";
const PING_MS = 100;
/** A viewer that has not responded by then will not: most likely there is no internet access. */
const PATIENCE_MS = 15_000;

/** Saves a trace as a file; returns null if there is no message to show. */
export async function saveTrace(query: TraceQuery, title: string): Promise<null> {
  saveBlob(`${title}.trace.json`, await loadTrace(query));
  return null;
}

/** Opens a trace in the Perfetto viewer. It is passed directly to that tab and not uploaded.
 *
 * Must be called from a click, or browsers block the tab. If the viewer cannot be reached, the trace is saved, and the
 * returned message says so.
 */
export async function openInPerfetto(query: TraceQuery, title: string): Promise<string | null> {
  const tab = window.open(VIEWER);
  if (tab === null) {
    await saveTrace(query, title);
    return "The browser blocked the new tab: the trace was saved as a file instead.";
  }
  try {
    const [trace, isThere] = await Promise.all([loadTrace(query), answers(tab)]);
    if (!isThere) {
      tab.close();
      saveBlob(`${title}.trace.json`, trace);
      return "Cannot reach ui.perfetto.dev: the trace was saved as a file instead.";
    }
    const buffer = await trace.arrayBuffer();
    tab.postMessage({ perfetto: { buffer, title, fileName: fileName(`${title}.trace.json`) } }, VIEWER, [buffer]);
    return null;
  } catch (error) {
    tab.close();
    throw error;
  }
}

/** Pings a tab until it responds; false if it does not, or was closed. */
function answers(tab: Window): Promise<boolean> {
  return new Promise((resolve) => {
    const asked = performance.now();
    const done = (isThere: boolean) => {
      window.clearInterval(timer);
      window.removeEventListener("message", onMessage);
      resolve(isThere);
    };
    const onMessage = (event: MessageEvent) => {
      if (event.source === tab && event.origin === VIEWER && event.data === "PONG") done(true);
    };
    window.addEventListener("message", onMessage);
    const timer = window.setInterval(() => {
      if (tab.closed || performance.now() - asked > PATIENCE_MS) return done(false);
      tab.postMessage("PING", VIEWER);
    }, PING_MS);
  });
}
