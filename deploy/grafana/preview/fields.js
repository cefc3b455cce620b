// What a panel leaves out of its JSON, Grafana fills in: the defaults of its panel plugins.
import {
  FieldConfigOptionsRegistry,
  identityOverrideProcessor,
  standardTransformers,
  standardTransformersRegistry,
} from "@grafana/data";

const STANDARD = [
  "unit",
  "min",
  "max",
  "decimals",
  "displayName",
  "noValue",
  "color",
  "thresholds",
  "mappings",
  "links",
  "filterable",
  "description",
];
const THRESHOLDS = {
  mode: "absolute",
  steps: [
    { color: "green", value: -Infinity },
    { color: "red", value: 80 },
  ],
};
const LEGEND = { showLegend: true, displayMode: "list", placement: "bottom", calcs: [] };
const REDUCE = { values: false, calcs: ["lastNotNull"], fields: "" };

const DEFAULTS = {
  timeseries: {
    options: { legend: LEGEND, tooltip: { mode: "single" } },
    color: "palette-classic",
    custom: {
      drawStyle: "line",
      lineInterpolation: "linear",
      lineWidth: 1,
      fillOpacity: 0,
      gradientMode: "none",
      spanNulls: false,
      showPoints: "auto",
      pointSize: 5,
      stacking: { mode: "none", group: "A" },
      axisPlacement: "auto",
      axisLabel: "",
      axisColorMode: "text",
      axisCenteredZero: false,
      scaleDistribution: { type: "linear" },
      hideFrom: { tooltip: false, viz: false, legend: false },
      thresholdsStyle: { mode: "off" },
      barAlignment: 0,
      barWidthFactor: 0.6,
    },
  },
  stat: {
    options: {
      reduceOptions: REDUCE,
      orientation: "auto",
      textMode: "auto",
      colorMode: "value",
      graphMode: "area",
      justifyMode: "auto",
    },
    color: "thresholds",
  },
  gauge: {
    options: {
      reduceOptions: REDUCE,
      orientation: "auto",
      showThresholdMarkers: true,
      showThresholdLabels: false,
    },
    color: "thresholds",
  },
  bargauge: {
    options: {
      reduceOptions: REDUCE,
      orientation: "auto",
      displayMode: "gradient",
      valueMode: "color",
      namePlacement: "auto",
      showUnfilled: true,
      sizing: "auto",
      minVizWidth: 8,
      minVizHeight: 16,
      maxVizHeight: 300,
    },
    color: "thresholds",
  },
  table: {
    options: { showHeader: true, cellHeight: "sm", sortBy: [], footer: { show: false } },
    color: "thresholds",
    custom: { align: "auto", cellOptions: { type: "auto" }, inspect: false },
  },
};

/** The panel with options and field configuration completed. */
export function completed(panel) {
  const plugin = DEFAULTS[panel.type];
  if (!plugin) {
    throw new Error(`${panel.type} is a panel type that this preview does not draw`);
  }
  const { defaults, overrides = [] } = panel.fieldConfig;
  const given = { ...plugin.options, ...panel.options };
  for (const key of ["legend", "reduceOptions", "footer"]) {
    given[key] = { ...plugin.options[key], ...panel.options[key] };
  }
  const thresholds = defaults.thresholds ?? THRESHOLDS;
  // JSON knows no -Infinity: the base step's value is null there.
  const steps = thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity }));
  return {
    ...panel,
    options: given,
    fieldConfig: {
      defaults: {
        ...defaults,
        color: defaults.color ?? { mode: plugin.color },
        thresholds: { ...thresholds, steps },
        custom: { ...plugin.custom, ...defaults.custom },
      },
      overrides: overrides.map((rule) => ({
        ...rule,
        properties: rule.properties.map((property) =>
          property.id === "thresholds"
            ? {
                ...property,
                value: {
                  ...property.value,
                  steps: property.value.steps.map((s) => ({ ...s, value: s.value ?? -Infinity })),
                },
              }
            : property,
        ),
      })),
    },
  };
}

/** The properties that fieldConfig may set: the standard ones and the panel's own. */
export function registry(panel) {
  const custom = new Set(Object.keys(panel.fieldConfig.defaults.custom ?? {}));
  for (const { properties } of panel.fieldConfig.overrides) {
    properties
      .filter(({ id }) => id.startsWith("custom."))
      .forEach(({ id }) => custom.add(id.slice(7)));
  }
  const property = (path, isCustom) => ({
    id: isCustom ? `custom.${path}` : path,
    path,
    isCustom,
    name: path,
    process: identityOverrideProcessor,
    shouldApply: () => true,
    override: () => null,
    editor: () => null,
  });
  return new FieldConfigOptionsRegistry(() => [
    ...STANDARD.map((path) => property(path, false)),
    ...[...custom].map((path) => property(path, true)),
  ]);
}

// Old names of a transformation are in the list beside the new one, under the same id.
standardTransformersRegistry.setInit(() =>
  Object.values(Object.fromEntries(Object.values(standardTransformers).map((t) => [t.id, t]))).map(
    (transformation) => ({
      id: transformation.id,
      name: transformation.name,
      transformation,
      editor: () => null,
    }),
  ),
);
