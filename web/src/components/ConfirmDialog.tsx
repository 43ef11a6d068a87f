import { type ReactNode, useEffect, useRef } from "react";

interface Props {
  title: string;
  /** The label of the button that confirms. */
  action: string;
  onConfirm: () => void;
  onCancel: () => void;
  children: ReactNode;
}

/** Confirms an action that cannot be undone; Escape and the first button cancel it. */
export function ConfirmDialog({ title, action, onConfirm, onCancel, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="help" onClose={onCancel} aria-label={title}>
      <header>
        <h2>{title}</h2>
      </header>
      {children}
      <div className="toolbar confirm-buttons">
        <button type="button" onClick={() => dialog.current?.close()}>
          Keep it
        </button>
        <button type="button" className="danger" onClick={onConfirm}>
          {action}
        </button>
      </div>
    </dialog>
  );
}
