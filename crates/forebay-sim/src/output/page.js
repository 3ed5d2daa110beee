// Optional: the page says everything without this. Hovering reads the values back from the curves.
(() => {
  const all = [...document.querySelectorAll('.plot')].map(figure => {
    const curves = [...figure.querySelectorAll('.inner .curve')].map(path => {
      const n = path.getAttribute('d').slice(1).split(' ').map(Number);
      return n.reduce((list, v, i) => { if (i % 2) list[list.length - 1].push(-v); else list.push([v]); return list; }, []);
    });
    const keys = [...figure.querySelectorAll('.legend b')];
    return { figure, curves, keys, usual: keys.map(key => key.textContent), inner: figure.querySelector('.inner'),
      cross: figure.querySelector('.cross'), at: figure.querySelector('.at'), from: +figure.dataset.from, to: +figure.dataset.to };
  });
  const number = v => v.toLocaleString('en', { maximumSignificantDigits: 100 > Math.abs(v) ? 3 : 9 });
  const time = t => { const m = Math.floor(t / 60), s = number(Math.round((t - 60 * m) * 10) / 10) + ' s'; return m > 0 ? m + ' min ' + s : s; };
  const show = (plot, t) => {
    plot.cross.setAttribute('x1', t); plot.cross.setAttribute('x2', t); plot.cross.style.visibility = 'visible';
    plot.at.textContent = 'at ' + time(t);
    plot.curves.forEach((points, i) => {
      const past = points.filter(point => t >= point[0]), value = (past.pop() || points[0])[1];
      plot.keys[i].textContent = number(value) + plot.figure.dataset.unit;
    });
  };
  const hide = plot => {
    plot.cross.style.visibility = 'hidden'; plot.at.textContent = '';
    plot.keys.forEach((key, i) => { key.textContent = plot.usual[i]; });
  };
  all.forEach(plot => {
    const field = plot.figure.querySelector('.field');
    const same = all.filter(other => other.from === plot.from ? other.to === plot.to : false);
    field.addEventListener('pointermove', event => {
      const box = plot.figure.querySelector('.outer').getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      same.forEach(other => show(other, plot.from + share * (plot.to - plot.from)));
    });
    field.addEventListener('pointerleave', () => same.forEach(hide));
  });
})();
