// Lays the dashboard out as Grafana does and reports what each panel got.
import { ThemeContext, createTheme } from "@grafana/data";
import { GlobalStyles, Icon } from "@grafana/ui";
import { createRoot } from "react-dom/client";
import { completed } from "./fields.js";
import { Panel, finished } from "./panels.jsx";
import { panelFrames, timeRange, variables } from "./query.js";

const [COLUMNS, CELL, GAP] = [24, 30, 8];

function placed({ x, y, w, h }, width) {
  const column = (width - GAP * (COLUMNS - 1)) / COLUMNS;
  return {
    left: x * (column + GAP),
    top: y * (CELL + GAP),
    width: Math.round(w * (column + GAP) - GAP),
    height: h * (CELL + GAP) - GAP,
  };
}

function Header({ dashboard, chosen, range }) {
  const box = { border: "1px solid rgba(128,128,128,.35)", borderRadius: 2, padding: "4px 8px" };
  return (
    <div style={{ display: "flex", gap: 8, alignItems: "center", height: 48, fontSize: 14 }}>
      <span style={{ fontSize: 18, fontWeight: 500 }}>{dashboard.title}</span>
      {Object.entries(chosen).map(([name, { label, text }]) => (
        <span key={name} style={box}>
          {label}: {text}
        </span>
      ))}
      <span style={{ ...box, marginLeft: "auto" }}>Last {range.raw.from.slice(4)}</span>
    </div>
  );
}

const Row = ({ title, style }) => (
  <div
    style={{
      ...style,
      position: "absolute",
      fontSize: 16,
      fontWeight: 500,
      lineHeight: `${style.height}px`,
    }}
  >
    <Icon name="angle-down" /> {title}
  </div>
);

function Dashboard({ dashboard, drawn, chosen, range, width, timeZone }) {
  const bottom = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div style={{ padding: 16, width: width + 32 }}>
      <Header {...{ dashboard, chosen, range }} />
      <div style={{ position: "relative", height: bottom * (CELL + GAP) }}>
        {dashboard.panels.map((panel) => {
          const style = placed(panel.gridPos, width);
          return panel.type === "row" ? (
            <Row key={panel.id} title={panel.title} style={style} />
          ) : (
            <div key={panel.id} style={{ ...style, position: "absolute" }}>
              <Panel
                {...drawn[panel.id]}
                {...{ range, timeZone }}
                width={style.width}
                height={style.height}
              />
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** Draws; answers, for each panel, which queries found nothing and how many values it shows. */
window.preview = async ({ dashboard, span, end, mode, width }) => {
  const [theme, timeZone] = [createTheme({ colors: { mode } }), "utc"];
  const range = timeRange(dashboard, span, end);
  const chosen = await variables(dashboard, range);
  const drawn = {};
  const report = [];
  for (const one of dashboard.panels.filter(({ type }) => type !== "row")) {
    const panel = completed(one);
    const raw = await panelFrames(panel, range, chosen, placed(panel.gridPos, width).width);
    const frames = await finished(panel, raw, theme, timeZone);
    drawn[panel.id] = { panel, frames };
    const found = new Set(
      raw
        .filter(({ fields }) => fields.at(-1).values.some((v) => Number.isFinite(v)))
        .map(({ refId }) => refId),
    );
    report.push({
      title: panel.title,
      series: raw.length,
      empty: panel.targets.map(({ refId }) => refId).filter((id) => !found.has(id)),
    });
  }
  document.body.style.background = theme.colors.background.canvas;
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard {...{ dashboard, drawn, chosen, range, width, timeZone }} />
    </ThemeContext.Provider>,
  );
  return report;
};
