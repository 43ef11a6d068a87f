import { type ReactNode, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { type Live, LiveConnection, LiveContext } from "./live";

/** Keeps the stream of one run open and provides its state to `useLive`. */
export function LiveProvider({ run, children }: { run: string | null; children: ReactNode }) {
  const [connection, setConnection] = useState(() => new LiveConnection(run));
  // A paused page stays paused when its run becomes known or another one is chosen.
  const isPaused = useRef(false);
  useEffect(() => {
    const opened = new LiveConnection(run);
    setConnection(opened);
    opened.start(isPaused.current);
    const onOnline = () => opened.reconnect();
    const onVisibility = () => (document.hidden ? opened.rest() : opened.reconnect());
    window.addEventListener("online", onOnline);
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      window.removeEventListener("online", onOnline);
      document.removeEventListener("visibilitychange", onVisibility);
      opened.stop();
    };
  }, [run]);
  const snapshot = useSyncExternalStore(connection.subscribe, connection.getSnapshot);
  const live = useMemo<Live>(
    () => ({
      ...snapshot,
      pause: () => {
        isPaused.current = true;
        connection.pause();
      },
      resume: () => {
        isPaused.current = false;
        connection.resume();
      },
    }),
    [snapshot, connection],
  );
  return <LiveContext value={live}>{children}</LiveContext>;
}
