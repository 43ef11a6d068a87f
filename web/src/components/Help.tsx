import { useEffect, useRef } from "react";

const KEYS: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  [
    "Everywhere",
    [
      ["1 – 9", "go to a view"],
      ["/", "search"],
      ["Esc", "clear the search, close a panel"],
      ["?", "this help"],
    ],
  ],
  [
    "Timeline",
    [
      ["W  S", "zoom in, out"],
      ["A  D", "move earlier, later"],
      ["←  →", "move earlier, later"],
      ["↑  ↓", "scroll the lanes"],
      ["F", "fit the entire run, or the selected span"],
      ["L", "follow the newest data"],
      ["N  P", "next, previous match"],
      ["wheel", "zoom at the pointer"],
      ["drag", "move; with Shift, select a range"],
    ],
  ],
  [
    "Tables",
    [
      ["↑  ↓", "move between rows"],
      ["Enter", "open the row"],
    ],
  ],
];

/** The keys, in a dialog. */
export function Help({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="help" onClose={onClose} aria-label="Keyboard help">
      <header>
        <h2>Keys</h2>
        <button type="button" className="icon-button" onClick={() => dialog.current?.close()} aria-label="Close">
          ×
        </button>
      </header>
      <div className="help-groups">
        {KEYS.map(([title, keys]) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, meaning]) => (
                <div key={key}>
                  <dt>
                    <kbd>{key}</kbd>
                  </dt>
                  <dd>{meaning}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </dialog>
  );
}
