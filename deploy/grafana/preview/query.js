// What Grafana's Prometheus data source does: variables, intervals, and answers as data frames.
import { FieldType, dateTime, rangeUtil, toDataFrame } from "@grafana/data";

const SCRAPE = "15s"; // the data source's default "Scrape interval"
const DURATION = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

const seconds = (text) => {
  const [, number, unit] = /^(\d+)(ms|[smhdw])$/.exec(text);
  return Number(number) * DURATION[unit];
};

async function ask(path, parameters) {
  const answer = await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const body = await answer.json();
  if (body.status !== "success") {
    throw new Error(body.error);
  }
  return body.data;
}

/** The dashboard's time range, or the last `span` ("30m"), ending at `end` (ms). */
export function timeRange(dashboard, span, end) {
  const length = span ?? dashboard.time.from.replace(/^now-/, "");
  const [from, to] = [dateTime(end - 1000 * seconds(length)), dateTime(end)];
  return { from, to, raw: { from: `now-${length}`, to: "now" } };
}

/** Name -> { label, text, value } of every variable: its default, which is all models. */
export async function variables(dashboard, range) {
  const found = {};
  for (const one of dashboard.templating.list) {
    if (one.type === "datasource") {
      found[one.name] = { label: one.label, text: one.current.text, value: one.current.value };
      continue;
    }
    const [, metric, label] = /^label_values\((.+),\s*(\w+)\)$/.exec(one.query.query);
    const options = await ask(`label/${label}/values`, {
      "match[]": metric,
      start: range.from.unix(),
      end: range.to.unix(),
    });
    found[one.name] = { label: one.label, text: "All", options, value: one.allValue };
  }
  return found;
}

function interpolated(expression, values) {
  return expression.replace(/\$(\w+)|\$\{(\w+)(?::\w+)?\}/g, (all, plain, braced) => {
    const value = values[plain ?? braced];
    if (value === undefined) {
      throw new Error(`${all} is no variable of the dashboard`);
    }
    return value;
  });
}

function legend(target, expression, labels) {
  const { __name__: name = "", ...rest } = labels;
  const format = target.legendFormat;
  if (format === "__auto" && Object.keys(labels).length > 0) {
    return undefined;
  }
  if (format && format !== "__auto") {
    return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? "");
  }
  const inner = Object.entries(rest).map(([label, value]) => `${label}="${value}"`);
  return name || inner.length ? `${name}{${inner.join(", ")}}` : expression;
}

/** A frame per series, on the grid of the query. */
function seriesFrames(result, target, expression, start, end, step) {
  const times = [];
  for (let time = start; time <= end; time += step) {
    times.push(time);
  }
  return result.map(({ metric, values }) => {
    // Prometheus leaves steps without a sample out; Grafana draws them as gaps.
    const at = new Map(values.map(([time, value]) => [Math.round(time), Number(value)]));
    const config = { displayNameFromDS: legend(target, expression, metric) };
    return toDataFrame({
      refId: target.refId,
      fields: [
        {
          name: "Time",
          type: FieldType.time,
          values: times.map((time) => 1000 * time),
          config: { interval: 1000 * step },
        },
        {
          name: "Value",
          type: FieldType.number,
          labels: metric,
          config,
          values: times.map((time) => at.get(time) ?? null),
        },
      ],
    });
  });
}

function instantFrames(result, target, expression) {
  return result.map(({ metric, value: [time, value] }) =>
    toDataFrame({
      refId: target.refId,
      fields: [
        { name: "Time", type: FieldType.time, values: [1000 * time] },
        {
          name: "Value",
          type: FieldType.number,
          labels: metric,
          values: [Number(value)],
          config: { displayNameFromDS: legend(target, expression, metric) },
        },
      ],
    }),
  );
}

/** One frame: time, a column per label, the value. */
function tableFrame(result, target, many) {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const column = (name, type, pick) => ({
    name,
    type,
    config: { filterable: true },
    values: result.map(pick),
  });
  return toDataFrame({
    refId: target.refId,
    fields: [
      column("Time", FieldType.time, ({ value }) => 1000 * value[0]),
      ...labels.map((label) => column(label, FieldType.string, ({ metric }) => metric[label])),
      column(many ? `Value #${target.refId}` : "Value", FieldType.number, ({ value }) =>
        Number(value[1]),
      ),
    ],
  });
}

/** Data frames of all targets of a panel that is `width` pixels wide. */
export async function panelFrames(panel, range, chosen, width) {
  const tables = panel.targets.filter(({ format }) => format === "table").length;
  const frames = panel.targets.map(async (target) => {
    const lowest = target.interval ?? SCRAPE;
    const { interval } = rangeUtil.calculateInterval(range, panel.maxDataPoints ?? width, lowest);
    const step = seconds(interval);
    const query = interpolated(target.expr, {
      __interval: interval,
      __rate_interval: `${Math.max(step + seconds(lowest), 4 * seconds(lowest))}s`,
      __range: `${range.to.unix() - range.from.unix()}s`,
      ...Object.fromEntries(Object.entries(chosen).map(([name, { value }]) => [name, value])),
    });
    if (target.instant) {
      const { result } = await ask("query", { query, time: range.to.unix() });
      return target.format === "table"
        ? result.length
          ? [tableFrame(result, target, tables > 1)]
          : []
        : instantFrames(result, target, query);
    }
    const [start, end] = [range.from, range.to].map(
      (time) => Math.floor(time.unix() / step) * step,
    );
    const { result } = await ask("query_range", { query, start, end, step });
    return seriesFrames(result, target, query, start, end, step);
  });
  return (await Promise.all(frames)).flat();
}
