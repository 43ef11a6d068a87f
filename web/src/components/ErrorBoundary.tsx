import { Component, type ReactNode } from "react";
import { PageChangedError } from "../views/retrying";
import { EmptyState } from "./EmptyState";

interface State {
  error: Error | null;
}

/** Keeps a failing view from breaking the page. */
export class ErrorBoundary extends Component<{ children: ReactNode }, State> {
  override state: State = { error: null };

  static getDerivedStateFromError(error: unknown): State {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    if (error instanceof PageChangedError) {
      return (
        <EmptyState title="This page is out of date" text={error.message}>
          <button type="button" onClick={() => window.location.reload()}>
            Reload the page
          </button>
        </EmptyState>
      );
    }
    return (
      <EmptyState title="This view failed" text={error.message}>
        <button type="button" onClick={() => this.setState({ error: null })}>
          Try again
        </button>
      </EmptyState>
    );
  }
}
