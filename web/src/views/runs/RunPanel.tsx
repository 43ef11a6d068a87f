import { useMemo, useState } from "react";
import { type RunInfo, api, errorText } from "../../api";
import { Drawer } from "../../components/Drawer";
import { EmptyState } from "../../components/EmptyState";
import { SearchBox } from "../../components/SearchBox";
import { formatCount, counted } from "../../units";
import { useAnswer } from "../../useQuery";
import { valueText } from "./values";
import { ErrorLine } from "../../components/ErrorLine";

interface Props {
  info: RunInfo;
  onChanged: () => void;
  onClose: () => void;
}

/** One run: its tags and notes, which can be changed, and its recorded configuration. */
export function RunPanel({ info, onChanged, onClose }: Props) {
  return (
    <Drawer
      title={
        <>
          Run <code>{info.run_id}</code>
        </>
      }
      onClose={onClose}
    >
      <p className="muted">{counted(info.processes, "process", "processes")}</p>
      <Notes key={info.run_id} info={info} onChanged={onChanged} />
      <Config run={info.run_id} />
    </Drawer>
  );
}

function Notes({ info, onChanged }: Omit<Props, "onClose">) {
  const [tags, setTags] = useState((info.tags ?? []).join(", "));
  const [notes, setNotes] = useState(info.notes ?? "");
  const [message, setMessage] = useState<string | null>(null);
  const save = async () => {
    try {
      const kept = await api.changeNotes(info.run_id, { tags: tags.split(","), notes });
      setTags(kept.tags!.join(", "));
      setMessage("Saved.");
      onChanged();
    } catch (failure) {
      setMessage(errorText(failure));
    }
  };
  return (
    <section>
      <h3>Tags and notes</h3>
      <form
        className="notes-form"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <label>
          <span>Tags, separated by commas</span>
          <input value={tags} onChange={(event) => setTags(event.target.value)} aria-label="Tags" />
        </label>
        <label>
          <span>Notes</span>
          <textarea rows={4} value={notes} onChange={(event) => setNotes(event.target.value)} aria-label="Notes" />
        </label>
        <div className="toolbar">
          <button type="submit">Save</button>
          <span className="muted" role="status">
            {message}
          </span>
        </div>
      </form>
    </section>
  );
}

function Config({ run }: { run: string }) {
  const [search, setSearch] = useState("");
  const { data, error } = useAnswer("config", { run }, { everyMs: 5000, keep: false });
  const rows = useMemo(() => Object.entries(data ?? {}), [data]);
  const shown = rows.filter(([key, value]) =>
    `${key} ${valueText(value)}`.toLowerCase().includes(search.toLowerCase()),
  );
  return (
    <section>
      <h3>{`Configuration${rows.length > 0 ? ` (${formatCount(rows.length)})` : ""}`}</h3>
      <ErrorLine text={error} />
      {data !== undefined && rows.length === 0 && (
        <EmptyState
          title="No configuration recorded"
          text="Record it once, from any process of the run:"
          code="insight.record_config(config)"
        />
      )}
      {rows.length > 0 && (
        <>
          <SearchBox
            value={search}
            onChange={setSearch}
            label="Search the configuration"
            placeholder="Search the configuration"
          />
          <table className="plain config" aria-label="Configuration">
            <tbody>
              {shown.map(([key, value]) => (
                <tr key={key}>
                  <td className="mono">{key}</td>
                  <td className="mono">{valueText(value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
    </section>
  );
}
