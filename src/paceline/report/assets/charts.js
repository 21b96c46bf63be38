// Which chart is drawn where. A place is drawn anew when there is more to draw; a Gantt chart keeps what it looks at.

const CHARTS = {
  curves: (host, run, runs) => learningCurves(host, runs),
  pace: (host, run) => paceChart(host, run),
  staleness: (host, run) => histogram(host, run.course.staleness, 'updates behind'),
  leads: (host, run) => histogram(host, run.course.leads, 'iterations ahead'),
  choices: (host, run) => choicesChart(host, run),
};

function placesForCharts() {
  return document.querySelectorAll('.chart[data-chart]');
}

function drawChart(host, runs) {
  const kind = host.dataset.chart, run = runs[Number(host.dataset.run || 0)];
  if (kind === 'gantt') {
    if (!host.gantt) host.gantt = new Gantt(host, run);
    else if (host.gantt.course === run.course) host.gantt.update();
    else host.gantt.retell(run.course);
    return;
  }
  const inside = html('div', 'chart');
  host.replaceChildren(inside);
  CHARTS[kind](inside, run, host.dataset.run === undefined ? runs : [run]);
}
