import { type KeyboardEvent, type Ref, useEffect, useImperativeHandle, useRef, useState } from "react";
import { isTyping } from "../keys";

interface Props {
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  label?: string;
  /** The tooltip: examples that the placeholder has no room for. */
  hint?: string;
  onEnter?: (isBackwards: boolean) => void;
  /** False: `/` does not focus this field, because another field of the view uses it (default true). */
  hasKey?: boolean;
  ref?: Ref<HTMLInputElement>;
}

const REST_MS = 200;

/** A search field: `/` focuses it, Escape clears and leaves it; changes are debounced. */
export function SearchBox({
  value,
  onChange,
  placeholder = "Search",
  label = "Search",
  hint,
  onEnter,
  hasKey = true,
  ref,
}: Props) {
  const [text, setText] = useState(value);
  const input = useRef<HTMLInputElement>(null);
  const notify = useRef(onChange);
  notify.current = onChange;
  const reported = useRef(value);
  useImperativeHandle(ref, () => input.current as HTMLInputElement, []);

  useEffect(() => {
    // Changed from outside, for example by the back button.
    if (value !== reported.current) {
      reported.current = value;
      setText(value);
    }
  }, [value]);

  useEffect(() => {
    if (text === reported.current) return undefined;
    const timer = window.setTimeout(() => {
      reported.current = text;
      notify.current(text);
    }, REST_MS);
    return () => window.clearTimeout(timer);
  }, [text]);

  useEffect(() => {
    if (!hasKey) return undefined;
    const onKey = (event: globalThis.KeyboardEvent) => {
      if (event.key !== "/" || isTyping(event.target)) return;
      event.preventDefault();
      input.current?.focus();
      input.current?.select();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [hasKey]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter") onEnter?.(event.shiftKey);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    setText("");
    input.current?.blur();
  };
  return (
    <input
      ref={input}
      className="search"
      type="search"
      aria-label={label}
      title={hint}
      placeholder={hasKey ? `${placeholder}  ( / )` : placeholder}
      value={text}
      spellCheck={false}
      onChange={(event) => setText(event.target.value)}
      onKeyDown={onKeyDown}
    />
  );
}
