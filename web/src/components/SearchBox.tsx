import { type KeyboardEvent, type Ref, useEffect, useImperativeHandle, useRef, useState } from "react";
import { isTyping } from "../keys";

interface Props {
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  label?: string;
  onEnter?: (isBackwards: boolean) => void;
  /** False: `/` does not jump here, as another field of the view has that key (default true). */
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
  onEnter,
  hasKey = true,
  ref,
}: Props) {
  const [text, setText] = useState(value);
  const input = useRef<HTMLInputElement>(null);
  const tell = useRef(onChange);
  tell.current = onChange;
  const told = useRef(value);
  useImperativeHandle(ref, () => input.current as HTMLInputElement, []);

  useEffect(() => {
    // Changed from outside, by the back button for example.
    if (value !== told.current) {
      told.current = value;
      setText(value);
    }
  }, [value]);

  useEffect(() => {
    if (text === told.current) return undefined;
    const timer = window.setTimeout(() => {
      told.current = text;
      tell.current(text);
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
      placeholder={hasKey ? `${placeholder}  ( / )` : placeholder}
      value={text}
      spellCheck={false}
      onChange={(event) => setText(event.target.value)}
      onKeyDown={onKeyDown}
    />
  );
}
