// Addresses, requests and keys of the served page. An address is #/run/NAME/rollout/KEY?filters.
'use strict';

const LIVE_S = 2; // seconds between two looks at a run that is being played
const page = document.getElementById('page');
const bar = document.getElementById('bar');
const said = document.getElementById('said');
const App = { start: null, draw: null, timer: 0, number: 0, token: '', failing: false };

async function api(name, params = {}) {
  const asked = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== '' && value !== undefined && value !== null));
  return answerOf(await fetch(`/api/${name}?${asked}`));
}

async function answerOf(response) {
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error || response.statusText), { status: response.status });
  return answer;
}

function path(parts, params = {}) {
  const asked = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== '' && value !== undefined && value !== null));
  return `#/${parts.map(encodeURIComponent).join('/')}${asked.size ? `?${asked}` : ''}`;
}

// The text of a part of an address, also of one that somebody has typed wrongly.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function whereTo() {
  const [names, asked] = location.hash.replace(/^#\/?/, '').split('?');
  return { parts: names.split('/').filter(Boolean).map(decoded), params: new URLSearchParams(asked || '') };
}

function crumbs(...links) {
  const parts = [el('a.brand', { href: '#/' }, 'rollq'), ...links.map(([words, to]) => el('a', { href: to }, words))];
  bar.replaceChildren(el('nav', { 'aria-label': 'Place' }, parts),
    el('span.source', null, App.start.live ? el('i.dot', { title: 'live' }) : null, App.start.title),
    el('button.help', { type: 'button', title: 'Keys (?)', onclick: showKeys }, '?'));
}

const KEYS = [
  ['/', 'search'],
  ['↑ ↓ Page Up Page Down Home End', 'choose a row of the table'],
  ['Enter', 'open it'],
  ['[ ]', 'previous and next rollout'],
  ['j k', 'next and previous turn'],
  ['t', 'texts of the tokens'],
  ['Escape', 'go up'],
];

function showKeys() {
  const before = document.querySelector('dialog');
  if (before) return before.close();
  const dialog = el('dialog.keys', { 'aria-label': 'Keys', onclose: () => dialog.remove() },
    el('h2', null, 'Keys'), el('dl', null, KEYS.map(([keys, does]) => [el('dt', null, keys), el('dd', null, does)])),
    el('form', { method: 'dialog' }, el('button.act', null, 'Close')));
  document.body.append(dialog);
  dialog.showModal();
}

async function show() {
  const number = (App.number += 1);
  clearTimeout(App.timer);
  App.draw = null;
  said.textContent = '';
  const { parts, params } = whereTo();
  const [kind, run, what, key] = parts;
  try {
    if (kind !== 'run' || !run) await showRuns(number);
    else if (what === 'rollout') await showRollout(run, key, params, number);
    else if (what === 'group') await showGroup(run, key, number);
    else await showRun(run, params, number);
  } catch (error) {
    if (number !== App.number) return;
    if (error instanceof TypeError) failed(error);
    else showAbsent(error, run ? [[run, path(['run', run])]] : []);
  }
}

// What an address names is not here: the page says so, with the way back.
function showAbsent(error, links, ...more) {
  const [last, [words, to] = ['runs', '#/']] = links.toReversed();
  crumbs(['runs', '#/'], ...links);
  page.replaceChildren(el('h1', null, last ? last[0] : 'Runs'), el('p.empty', null, error.message),
    el('p.note', null, el('a', { href: to }, `Back to ${words}`)), el('nav.moves', null, more));
  if (error.status === 503) App.timer = setTimeout(show, 1000 * LIVE_S); // Redis may answer again
}

function failed(error) {
  App.failing = true;
  said.replaceChildren(el('p.banner', null, error instanceof TypeError ? `rollq view does not answer: is it still running? (${error.message})` : error.message));
}

// Calls `look` every LIVE_S seconds while the page is in sight, and at once while a file is still being read.
function repeat(number, look, soon = false) {
  clearTimeout(App.timer);
  App.timer = setTimeout(async () => {
    if (number !== App.number) return;
    let again = false;
    if (!document.hidden) {
      const failedBefore = App.failing;
      App.failing = false;
      try {
        again = await look();
      } catch (error) {
        failed(error);
      }
      if (failedBefore && !App.failing) said.textContent = '';
    }
    if (number === App.number) repeat(number, look, again);
  }, soon ? 20 : 1000 * LIVE_S);
}

async function showRuns(number) {
  const { runs } = await api('runs');
  if (number !== App.number) return;
  if (runs.length === 1 && !App.start.live) return location.replace(path(['run', runs[0].run]));
  crumbs(['runs', '#/']);
  document.title = 'rollq view';
  const draw = (runs) => page.replaceChildren(el('h1', null, 'Runs'), runs.length ? el('ul.runs', null, runs.map(runLine)) : el('p.empty', null, 'No run was submitted yet.'));
  draw(runs);
  follow(number, runs, async () => (await api('runs')).runs, draw);
}

// Draws what `read` gives whenever it has changed, while the run may be played.
function follow(number, first, read, draw) {
  if (!App.start.live) return;
  let before = JSON.stringify(first);
  repeat(number, async () => {
    const now = await read();
    const text = JSON.stringify(now);
    if (number === App.number && text !== before) await draw(now);
    before = text;
    return false;
  });
}

function runLine(run) {
  return el('li', null, el('a', { href: path(['run', run.run]) },
    el('b', null, run.run),
    el('span', null, many(run.rollouts, 'rollout')),
    run.queued || run.leased ? pill(`${count(run.leased)} playing, ${count(run.queued)} queued`, 'live') : el('span.quiet', null, 'nothing left to play'),
    el('span', null, run.reward_mean === null || run.reward_mean === undefined ? '–' : `mean reward ${run.reward_mean.toFixed(3)}`),
    run.dead ? pill(`${count(run.dead)} dead`, 'bad') : el('span'),
    el('span.quiet', null, isFinite(run.began) ? moment(run.began) : ''), run.why ? el('p.error', null, run.why) : null));
}

async function showRun(run, params, number) {
  const query = queryOf(params);
  const tab = params.get('tab') || 'rollouts';
  const go = (changed) => { location.hash = path(['run', run], { ...changed, tab: changed.tab || (tab === 'dead' ? '' : tab) }); };
  const facts = await api('run', { run });
  if (number !== App.number) return;
  trouble(facts);
  crumbs(['runs', '#/'], [run, path(['run', run])]);
  document.title = `${run} · rollq view`;
  const counts = el('div.cards', null, cards(facts, go));
  const holdup = el('div.holdup', { role: 'status' }, words(facts));
  const tabs = el('nav.tabs', { 'aria-label': 'Views' }, [['rollouts', facts.listed.rollouts], ['groups', facts.listed.groups], ['dead', facts.listed.states.dead || 0]].map(([name, times]) =>
    el('a', { href: path(['run', run], { ...query, tab: name === 'rollouts' ? '' : name }), 'aria-current': name === tab ? 'page' : null }, `${name} `, el('span', null, count(times)))));
  const typed = document.activeElement && document.activeElement.id === 'search' ? document.activeElement : null;
  const filters = tab === 'dead' ? null : filterBar(facts.listed, query, go);
  const body = el('div.body');
  const list = listOf(tab, run, query, go, body);
  page.replaceChildren(el('div.run', null, el('h1.hidden', null, run), counts, holdup, el('div.tools', null, tabs, filters), body));
  const search = document.getElementById('search');
  if (typed && search) { // it is typed in, also while the answer was waited for
    search.value = typed.value;
    search.focus();
    search.setSelectionRange(typed.selectionStart, typed.selectionEnd);
  }
  await list(true);
  let version = facts.version;
  repeat(number, async () => {
    const now = await api('run', { run });
    if (number !== App.number) return false;
    trouble(now);
    counts.replaceChildren(...cards(now, go).filter(Boolean));
    holdup.replaceChildren(...words(now));
    reading(now.share);
    if (now.version !== version) await list(false);
    version = now.version;
    return now.share < 1;
  }, facts.share < 1);
  reading(facts.share);
}

// What holds the run up, and what is no longer there.
function words(facts) {
  return [facts.holdup, facts.gone].filter(Boolean).map((text) => el('p', null, text));
}

// Redis does not answer, or something cannot be read: the page shows what was known before.
function trouble({ trouble, age_s: age }) {
  if (trouble) failed(new Error(typeof age === 'number' ? `${trouble.replace(/\.$/, '')}. This was read ${duration(age)} ago.` : trouble));
}

function reading(share) {
  const note = document.getElementById('reading') || el('p.note', { id: 'reading' });
  note.textContent = share < 1 ? `Reading the file: ${percent(share)}` : '';
  page.append(note);
}

function listOf(tab, run, query, go, body) {
  if (tab === 'groups') return async () => body.replaceChildren(...[groupList(run, await api('groups', { run, ...query, limit: 500 }))].flat().filter(Boolean));
  if (tab === 'dead') {
    const again = App.start.actions && App.token ? (jobs) => requeue(run, jobs) : null;
    return async () => body.replaceChildren(...[deadList(run, await api('rollouts', { run, state: 'dead', limit: 500 }), again)].flat().filter(Boolean), actionNote());
  }
  const table = rolloutTable(run, query, go);
  body.classList.add('fill');
  body.append(table.node);
  return async (reset) => {
    await table.refresh({ reset });
    if (reset && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) table.node.focus({ preventScroll: true });
  };
}

function actionNote() {
  if (!App.start.live || (App.start.actions && App.token)) return el('p.note');
  return el('p.note', null, App.start.actions ? 'Open the address that `rollq view` printed, to play dead rollouts again here.'
    : 'Read-only. `rollq jobs requeue` plays dead rollouts again, and so does this page after `rollq view --allow-actions`.');
}

async function requeue(run, jobs) {
  const refused = [];
  for (const job of jobs) {
    try {
      await answerOf(await fetch('/api/requeue', { method: 'POST', headers: { 'X-Rollq-Token': App.token, 'Content-Type': 'application/json' }, body: JSON.stringify({ run, job }) }));
    } catch (error) {
      refused.push(error.message);
    }
  }
  await show();
  said.replaceChildren(el('p.banner', { class: refused.length ? '' : 'good' }, `${count(jobs.length - refused.length)} of ${count(jobs.length)} queued again. `, refused[0] || ''));
}

async function showRollout(run, key, params, number) {
  const attempt = params.get('attempt') || '';
  const found = await api('rollout', { run, key, attempt }).catch((error) => error);
  if (found instanceof TypeError) throw found;
  const beside = await neighbours(run, params);
  if (number !== App.number) return;
  const query = queryOf(params);
  if (found instanceof Error) return showAbsent(found, [[run, path(['run', run], query)], [key, location.hash]], beside.previous, beside.next);
  crumbs(['runs', '#/'], [run, path(['run', run], query)], [found.group, path(['run', run, 'group', found.group])], [`sample ${found.sample}`, location.hash]);
  document.title = `${found.job} · rollq view`;
  const draw = (now) => page.replaceChildren(rolloutPage(now, { ...beside, ...linksOf(run, now, attempt) }));
  draw(found);
  window.scrollTo(0, 0);
  page.focus({ preventScroll: true });
  App.draw = 'rollout';
  let before = JSON.stringify(found);
  if (found.running) repeat(number, async () => {
    const now = await api('rollout', { run, key, attempt });
    const text = JSON.stringify(now);
    if (number !== App.number || text === before) return false;
    before = text;
    const end = window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 40;
    draw(now);
    if (end) window.scrollTo(0, document.documentElement.scrollHeight);
    if (!now.running) App.number += 1;
    return false;
  });
}

// Links to the rollouts before and behind this one in the list that it was opened from.
async function neighbours(run, params) {
  if (!params.has('at')) return {};
  const at = Number(params.get('at'));
  const first = Math.max(0, at - 1);
  const { rows } = await api('rollouts', { run, ...queryOf(params), offset: first, limit: 3 });
  const link = (place, words, key) => rows[place - first] && place !== at ? el('a.move', { href: path(['run', run, 'rollout', rows[place - first].key], { ...queryOf(params), at: place }), 'data-key': key, title: `key ${key}` }, words) : null;
  return { previous: link(at - 1, '← previous', '['), next: link(at + 1, 'next →', ']') };
}

function linksOf(run, found, attempt) {
  const at = (number) => path(['run', run, 'rollout', found.key], { attempt: number });
  const others = [...(found.set_aside || []), found.last_attempt].filter((number) => number !== undefined && String(number) !== String(attempt || found.last_attempt));
  const dead = found.state === 'dead' && App.start.actions && App.token;
  return {
    group: el('a', { href: path(['run', run, 'group', found.group]) }, found.group),
    attempts: others.length ? el('p', null, 'Other attempts: ', others.map((number) => [el('a', { href: at(number) }, number), ' '])) : null,
    requeue: dead ? el('button.act', { type: 'button', onclick: () => requeue(run, [found.job]) }, 'Play again') : null,
  };
}

const NO_MEMBERS = 'It has no rollouts here. Once a group is acknowledged, they are in your exported file only.';

async function showGroup(run, group, number) {
  const read = async () => {
    const answer = await api('rollouts', { run, group, limit: 64 });
    trouble(answer);
    return { total: answer.total, rows: answer.rows };
  };
  const draw = async ({ total, rows }) => {
    rows.sort((a, b) => a.sample - b.sample);
    const pages = [];
    const without = (row, error) => ({ ...row, error, entries: [], parts: [], failed_calls: [] });
    const pageOf = (row) => (row.state === 'acked' ? without(row, '') : api('rollout', { run, key: row.key }).catch((error) => without(row, error.message)));
    for (let at = 0; at < rows.length; at += 4) pages.push(...await Promise.all(rows.slice(at, at + 4).map(pageOf)));
    if (number !== App.number) return;
    const first = rows[0];
    page.replaceChildren(el('h1', null, `Group ${group}`), el('p.quiet', null, first ? `${first.env} ${first.split} · task ${first.task}, ${many(total, 'member')}${rows.length < total ? `, ${rows.length} of them here` : ''}` : NO_MEMBERS), sideBySide(run, pages));
  };
  const found = await read();
  if (number !== App.number) return;
  crumbs(['runs', '#/'], [run, path(['run', run])], [group, location.hash]);
  document.title = `${group} · rollq view`;
  await draw(found);
  window.scrollTo(0, 0);
  follow(number, found, read, draw);
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  const move = document.querySelector(`a[data-key="${event.key === '[' || event.key === ']' ? event.key : 'none'}"]`);
  if (move) location.hash = move.getAttribute('href');
  if (event.key === '/' && document.getElementById('search')) {
    event.preventDefault();
    document.getElementById('search').focus();
  }
  if (event.key === '?') showKeys();
  if (event.key === 'Escape' && !document.querySelector('dialog')) {
    const links = bar.querySelectorAll('nav a');
    if (links.length > 2) location.hash = links[links.length - 2].getAttribute('href');
  }
});
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); page.focus(); });
turnKeys(() => App.draw === 'rollout');
window.addEventListener('hashchange', show);

(async () => {
  const token = new URLSearchParams(location.hash.startsWith('#token=') ? location.hash.slice(1) : '').get('token');
  if (token) sessionStorage.setItem('token', token);
  App.token = sessionStorage.getItem('token') || '';
  try {
    App.start = await api('start');
  } catch (error) {
    return failed(error);
  }
  if (token || !location.hash) history.replaceState(null, '', App.start.run ? path(['run', App.start.run]) : '#/');
  await show();
})();
