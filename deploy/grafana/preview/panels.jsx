// One panel, drawn by the component that Grafana itself draws it with.
import {
  applyFieldOverrides,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  transformDataFrame,
} from "@grafana/data";
import {
  BarGauge,
  BigValue,
  Gauge,
  PanelChrome,
  Table,
  TimeSeries,
  VizRepeater,
  useTheme2,
} from "@grafana/ui";
import { lastValueFrom } from "rxjs";
import { registry } from "./fields.js";

const asIs = (text) => text;

/** Frames after the panel's transformations and its field configuration. */
export async function finished(panel, frames, theme, timeZone) {
  const transformed = await lastValueFrom(
    transformDataFrame(panel.transformations ?? [], frames, { interpolate: asIs }),
  );
  return applyFieldOverrides({
    data: transformed,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry: registry(panel),
    replaceVariables: asIs,
    theme,
    timeZone,
  });
}

function Repeated({
  panel,
  frames,
  width,
  height,
  orientation,
  itemSpacing,
  autoGrid,
  sparkline,
  draw,
}) {
  const theme = useTheme2();
  const { options, fieldConfig } = panel;
  return (
    <VizRepeater
      getValues={() =>
        getFieldDisplayValues({
          fieldConfig,
          reduceOptions: options.reduceOptions,
          replaceVariables: asIs,
          theme,
          data: frames,
          sparkline,
          timeZone: "utc",
        })
      }
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={(props) => draw(props, theme)}
      source={frames}
      renderCounter={0}
      orientation={orientation}
      {...{ width, height, itemSpacing, autoGrid }}
      minVizHeight={options.minVizHeight}
      minVizWidth={options.minVizWidth}
      maxVizHeight={options.maxVizHeight}
    />
  );
}

function Stat(props) {
  const { options } = props.panel;
  return (
    <Repeated
      {...props}
      orientation={options.orientation}
      autoGrid
      sparkline={options.graphMode !== "none"}
      draw={({ value, width, height, alignmentFactors, count }, theme) => (
        <BigValue
          value={value.display}
          sparkline={value.sparkline}
          {...{ width, height, alignmentFactors, count, theme }}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode}
          text={options.text}
        />
      )}
    />
  );
}

function Bars(props) {
  const { options } = props.panel;
  return (
    <Repeated
      {...props}
      orientation={options.orientation}
      itemSpacing={options.displayMode === "lcd" ? 2 : 10}
      draw={({ value, width, height, orientation, alignmentFactors }, theme) => (
        <BarGauge
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          {...{ width, height, orientation, alignmentFactors, theme }}
          displayMode={options.displayMode}
          showUnfilled={options.showUnfilled}
          valueDisplayMode={options.valueMode}
          namePlacement={options.namePlacement}
          text={options.text}
        />
      )}
    />
  );
}

function Dial(props) {
  const { options } = props.panel;
  return (
    <Repeated
      {...props}
      orientation={options.orientation}
      autoGrid
      draw={({ value, width, height, orientation }, theme) => (
        <Gauge
          value={value.display}
          field={value.field}
          {...{ width, height, orientation, theme }}
          showThresholdLabels={options.showThresholdLabels}
          showThresholdMarkers={options.showThresholdMarkers}
          text={options.text}
        />
      )}
    />
  );
}

const Lines = ({ panel, frames, width, height, range, timeZone }) => (
  <TimeSeries
    frames={frames}
    timeRange={range}
    timeZone={timeZone}
    legend={panel.options.legend}
    {...{ width, height }}
  />
);

const Grid = ({ panel, frames, width, height }) => (
  <Table
    data={frames[0]}
    {...{ width, height }}
    noHeader={!panel.options.showHeader}
    cellHeight={panel.options.cellHeight}
    initialSortBy={panel.options.sortBy}
  />
);

const DRAWN = { timeseries: Lines, stat: Stat, bargauge: Bars, gauge: Dial, table: Grid };

const NoData = ({ width, height }) => (
  <div style={{ width, height, display: "flex", alignItems: "center", justifyContent: "center" }}>
    No data
  </div>
);

export function Panel({ panel, frames, width, height, range, timeZone }) {
  const Drawn = frames.some(({ length }) => length > 0) ? DRAWN[panel.type] : NoData;
  const padding = panel.type === "table" ? "none" : "md";
  return (
    <PanelChrome
      title={panel.title}
      description={panel.description}
      {...{ width, height, padding }}
    >
      {(innerWidth, innerHeight) => (
        <Drawn {...{ panel, frames, range, timeZone }} width={innerWidth} height={innerHeight} />
      )}
    </PanelChrome>
  );
}
