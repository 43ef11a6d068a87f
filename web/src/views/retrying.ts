// Parts of the page that are loaded when first shown, even if the server is down at that time.

const RETRY_MS = 1500;

export interface Patience {
  isReachable: () => Promise<boolean>;
  wait: (ms: number) => Promise<void>;
}

const browser: Patience = {
  isReachable: () =>
    fetch("/healthz").then(
      (answer) => answer.ok,
      () => false,
    ),
  wait: (ms) => new Promise((resolve) => window.setTimeout(resolve, ms)),
};

/** The server has another build of the page than the visible one. */
export class PageChangedError extends Error {
  constructor() {
    super("The server has a newer version of this page. Reload it to continue.");
  }
}

/** Returns a loader that waits for a server that is down.
 *
 * If the server responds and the part is still unavailable, the server was upgraded since the page was opened.
 */
export function retrying<T>(load: () => Promise<T>, { isReachable, wait }: Patience = browser): () => Promise<T> {
  return async () => {
    // Failures are meaningless until the server has responded once.
    for (let isAnswering = false; ; isAnswering = await isReachable()) {
      try {
        return await load();
      } catch {
        if (isAnswering) throw new PageChangedError();
        await wait(RETRY_MS);
      }
    }
  };
}
