// The GPUs of a run now, as the server computes them.
import type { GpusNow, QuantityNow } from "./api";

/** A quantity over the GPUs that report; undefined if none does. */
export function quantityNow(now: GpusNow, quantity: string): QuantityNow | undefined {
  return now.quantities.find((one) => one.quantity === quantity);
}
