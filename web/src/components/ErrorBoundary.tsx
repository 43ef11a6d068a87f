import { Component, type ReactNode } from "react";
import { EmptyState } from "./EmptyState";

interface State {
  message: string | null;
}

/** Keeps a failing view from taking the page with it. */
export class ErrorBoundary extends Component<{ children: ReactNode }, State> {
  override state: State = { message: null };

  static getDerivedStateFromError(error: unknown): State {
    return { message: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    if (this.state.message === null) return this.props.children;
    return (
      <EmptyState title="This view failed" text={this.state.message}>
        <button type="button" onClick={() => this.setState({ message: null })}>
          Try again
        </button>
      </EmptyState>
    );
  }
}
