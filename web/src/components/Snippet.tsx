import { useState } from "react";

/** Code to copy: wrapped where it is too long, so that all of it can be read. */
export function Snippet({ code }: { code: string }) {
  const [isCopied, setIsCopied] = useState(false);
  // Browsers offer the clipboard only to pages of this machine and to those with TLS.
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
