import { useState } from "react";
import { useSavedViews } from "../savedViews";
import { navigate } from "../url";

/** Views saved by name on this server: go to one, save this one, remove one. */
export function SavedViewsMenu() {
  const { views, save, problem } = useSavedViews();
  const [name, setName] = useState("");
  return (
    <details className="menu">
      <summary>Views</summary>
      <div className="menu-body">
        {views.length === 0 && <p className="muted">No saved views yet.</p>}
        {views.map((view) => (
          <div key={view.name} className="menu-line">
            <button type="button" className="link-button" onClick={() => navigate(view.address)} title={view.address}>
              {view.name}
            </button>
            <button
              type="button"
              className="icon-button"
              aria-label={`Remove the view ${view.name}`}
              onClick={() => save(view.name, "")}
            >
              ×
            </button>
          </div>
        ))}
        <form
          className="menu-line"
          onSubmit={(event) => {
            event.preventDefault();
            save(name, window.location.search || "?");
            setName("");
          }}
        >
          <input
            value={name}
            maxLength={100}
            aria-label="Name of this view"
            placeholder="Name of this view"
            onChange={(event) => setName(event.target.value)}
          />
          <button type="submit" disabled={name.trim() === ""}>
            Save
          </button>
        </form>
        {problem !== null && <p className="bad">{problem}</p>}
      </div>
    </details>
  );
}
