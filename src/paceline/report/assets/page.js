// Puts a chart into every place that the page has for one.

async function drawAll() {
  const runs = await readData();
  document.body.classList.add('drawn');
  for (const host of placesForCharts()) drawChart(host, runs);
  document.body.dataset.charts = 'drawn';
}

drawAll().catch((problem) => {
  const note = html('p', 'note', null, `The charts could not be drawn here: ${problem.message}`);
  document.querySelector('main').prepend(note);
  throw problem;
});
