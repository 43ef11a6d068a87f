import type { ViewProps } from ".";
import { EmptyState } from "../components/EmptyState";

export default function Overview({ run }: ViewProps) {
  return <EmptyState title={run} />;
}
