import { useState } from "react";

/** Code to copy; long lines are wrapped. */
export function Snippet({ code }: { code: string }) {
  const [isCopied, setIsCopied] = useState(false);
  // Browsers allow the clipboard only on localhost and over TLS.
  const clipboard = navigator.clipboard as Clipboard | undefined;
  const copy = async () => {
    await clipboard?.writeText(code);
    setIsCopied(true);
  };
  return (
    <div className="snippet">
      <pre>{code}</pre>
      {clipboard !== undefined && (
        <button type="button" onClick={() => void copy()}>
          {isCopied ? "Copied" : "Copy"}
        </button>
      )}
    </div>
  );
}
