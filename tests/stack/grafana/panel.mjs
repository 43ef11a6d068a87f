// Reads panels with the frames of their queries from the standard input, and writes what Grafana's own code makes of
// them: the transformed frames, each with its display name and the text and color of its values.
import { readFileSync } from "node:fs";
import {
  applyFieldOverrides,
  createTheme,
  displayNameOverrideProcessor,
  getFieldDisplayName,
  identityOverrideProcessor,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
  valueMappingsOverrideProcessor,
} from "@grafana/data";
import { lastValueFrom, map } from "rxjs";

// What a browser has and Node.js does not.
globalThis.window ??= globalThis;
globalThis.navigator ??= { language: "en-US", languages: ["en-US"] };
// The one transformation of ours that Grafana has in its application and not in its package: one frame per value of a
// field, which becomes a label of the others.
const partitionByValues = {
  id: "partitionByValues",
  name: "Partition by values",
  operator: (options) => (source) => source.pipe(map((frames) => frames.flatMap((frame) => split(frame, options.fields[0])))),
};

function split(frame, name) {
  const key = frame.fields.find((field) => getFieldDisplayName(field, frame) === name);
  return [...new Set(key.values)].map((value) => {
    const rows = Array.from(key.values, (_, row) => row).filter((row) => key.values[row] === value);
    const fields = frame.fields
      .filter((field) => field !== key)
      .map((field) => ({
        ...field,
        state: undefined,
        labels: { ...field.labels, [name]: value },
        values: rows.map((row) => field.values[row]),
      }));
    return { ...frame, fields, length: rows.length };
  });
}

const known = [...Object.values(standardTransformers), partitionByValues];
standardTransformersRegistry.setInit(() =>
  [...new Map(known.map((one) => [one.id, one])).values()].map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation: async () => transformation,
    editor: () => null,
  })),
);
const own = { displayName: displayNameOverrideProcessor, mappings: valueMappingsOverrideProcessor };
standardFieldConfigEditorRegistry.setInit(() =>
  ["displayName", "mappings", "color", "unit", "min", "max", "thresholds", "noValue", "decimals", "links"].map((id) => ({
    id,
    path: id,
    name: id,
    process: own[id] ?? identityOverrideProcessor,
    shouldApply: () => true,
    override: () => null,
    editor: () => null,
  })),
);

// Grafana's page fills variables in; this is the only one in names of fields.
const fill = (text, labels) => text.replace(/\$\{__field\.labels\.(\w+)\}/g, (_, label) => labels[label] ?? "");

async function draw({ panel, frames }) {
  for (const { id } of panel.transformations ?? []) {
    if (!known.some((one) => one.id === id)) throw new Error(`Grafana's package has no transformation ${id}`);
  }
  const made = frames.map((frame) => toDataFrame(frame));
  const transformed = panel.transformations?.length
    ? await lastValueFrom(transformDataFrame(panel.transformations, made))
    : made;
  const shown = applyFieldOverrides({
    data: transformed,
    fieldConfig: panel.fieldConfig,
    replaceVariables: (text) => text,
    theme: createTheme(),
    timeZone: "utc",
  });
  return shown.map((frame) => ({
    length: frame.length,
    fields: frame.fields.map((field) => ({
      name: field.name,
      type: field.type,
      labels: field.labels ?? {},
      title: fill(getFieldDisplayName(field, frame, shown), field.labels ?? {}),
      values: Array.from(field.values),
      colors: field.type === "string" ? Array.from(field.values, (value) => field.display(value).color) : [],
      texts: field.type === "string" ? Array.from(field.values, (value) => field.display(value).text) : [],
    })),
  }));
}

const panels = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(await Promise.all(panels.map(draw))));
