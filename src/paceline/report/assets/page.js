// Puts a chart into every place that the page has for one.

async function drawAll() {
  const runs = await readData();
  document.body.classList.add('drawn');
  for (const host of document.querySelectorAll('.chart[data-chart]')) {
    const run = runs[Number(host.dataset.run || 0)];
    switch (host.dataset.chart) {
      case 'gantt': host.gantt = new Gantt(host, run); break;
      case 'curves': learningCurves(host, host.dataset.run === undefined ? runs : [run]); break;
      case 'pace': paceChart(host, run); break;
      case 'staleness': histogram(host, run.course.staleness, 'updates behind'); break;
      case 'leads': histogram(host, run.course.leads, 'iterations ahead'); break;
      case 'choices': choicesChart(host, run); break;
    }
  }
  document.body.dataset.charts = 'drawn';
}

drawAll().catch((problem) => {
  const note = html('p', 'note', null, `The charts could not be drawn here: ${problem.message}`);
  document.querySelector('main').prepend(note);
  throw problem;
});
