import { VIEWS, type View } from "../views";
import { ViewLink } from "./ViewLink";

/** The list of views. */
export function Navigation({ current, views = VIEWS }: { current: string; views?: readonly View[] }) {
  return (
    <nav className="navigation" aria-label="Views">
      <div className="brand" aria-hidden="true">
        <svg viewBox="0 0 32 32" width="22" height="22">
          <rect x="3" y="6" width="15" height="5" rx="2" fill="#56b4e9" />
          <rect x="11" y="13.5" width="18" height="5" rx="2" fill="#e69f00" />
          <rect x="6" y="21" width="11" height="5" rx="2" fill="#2bb58a" />
        </svg>
        <span>RL-Insight</span>
      </div>
      {views.map((view, index) => (
        <ViewLink
          key={view.name}
          view={view.name}
          title={`${view.title} (${index + 1})`}
          isCurrent={view.name === current}
        >
          <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
            <path
              d={view.icon}
              fill="none"
              stroke="currentColor"
              strokeWidth="1.6"
              strokeLinecap="round"
              strokeLinejoin="round"
            />
          </svg>
          <span>{view.title}</span>
        </ViewLink>
      ))}
    </nav>
  );
}
