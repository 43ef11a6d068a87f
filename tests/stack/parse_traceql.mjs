// Reads searches as a JSON list and prints, for each, where Grafana's own grammar of TraceQL finds it wrong.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [root] = process.argv.slice(2);
const { parser } = createRequire(`${root}/web/package.json`)("@grafana/lezer-traceql");

function mistakes(text) {
  const found = [];
  parser.parse(text).iterate({
    enter: (node) => {
      if (node.type.isError) found.push(text.slice(node.from) || "its end");
    },
  });
  return found;
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(mistakes)));
