// Traces of a run for Perfetto: saved as a file, or handed to the viewer in another tab.
import { type TraceQuery, loadTrace } from "./api";
import { fileName, saveBlob } from "./download";

const VIEWER = "https://ui.perfetto.dev";
const PING_MS = 100;
/** A viewer that has not answered by then is not coming: most likely there is no internet. */
const PATIENCE_MS = 15_000;

/** Saves a trace as a file; returns null if there is no message to show. */
export async function saveTrace(query: TraceQuery, title: string): Promise<null> {
  saveBlob(`${title}.trace.json`, await loadTrace(query));
  return null;
}

/** Opens a trace in the Perfetto viewer. It goes from this page into that tab, and to no server.
 *
 * Must be called by a click: browsers open no tab otherwise. Where the viewer cannot be reached, the trace is saved; the
 * sentence that is returned says so.
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

/** Asks a tab until it answers; false when it does not, or was closed. */
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
