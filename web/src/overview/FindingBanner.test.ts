import { expect, test } from "vitest";
import type { Finding } from "../api";
import { openFindings } from "./FindingBanner";

function finding(finding_id: string, more: Partial<Finding> = {}): Finding {
  return { finding_id, rule: "stall", severity: "warning", title: finding_id, start_ns: 1, end_ns: 2, ...more };
}

test("shows open findings, most severe first, without explained ones", () => {
  const found = openFindings([
    finding("resolved", { status: "resolved" }),
    finding("minor", { status: "open" }),
    finding("cause", { status: "open", severity: "critical", explains: ["symptom"] }),
    finding("symptom", { status: "open", severity: "critical" }),
    finding("note", { status: "open", severity: "info" }),
  ]);
  expect(found.map((one) => one.finding_id)).toEqual(["cause", "minor"]);
});
