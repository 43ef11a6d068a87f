import type { Lane } from "../api";
import { RangePanel } from "./RangePanel";
import { SpanPanel } from "./SpanPanel";
import type { Window } from "./geometry";
import type { Navigation } from "./useNavigation";
import type { ChangeSelection } from "./useSelection";
import type { TimelineAddress } from "./useTimelineAddress";

interface Props {
  run: string;
  origin: number;
  range: Window | null;
  lanes: readonly Lane[];
  address: TimelineAddress;
  navigation: Navigation;
  change: ChangeSelection;
  onZoom: (range: Window) => void;
}

/** The selected range or, without one, the selected span. */
export function SidePanel({ run, origin, range, lanes, address, navigation, change, onZoom }: Props) {
  const { spanId, setSpanId } = address;
  if (range !== null) {
    const close = () => change({ range: null });
    const zoom = () => onZoom(range);
    return <RangePanel run={run} range={range} origin={origin} lanes={lanes} onZoom={zoom} onClose={close} />;
  }
  if (spanId === "") return null;
  return (
    <SpanPanel
      run={run}
      spanId={spanId}
      onPick={navigation.pick}
      onShow={navigation.show}
      onClose={() => setSpanId("")}
      onDetail={(detail) => change({ detail })}
    />
  );
}
