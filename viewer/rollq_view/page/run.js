// A run: its counts, and its rollouts, groups and dead letters.
'use strict';

const FILTERS = ['text', 'reward', 'outcome', 'failure', 'env', 'group'];

// The query in an address, as /api/rollouts takes it.
function queryOf(params) {
  const query = {};
  for (const name of [...FILTERS, 'sort', 'descending']) if (params.get(name)) query[name] = params.get(name);
  return query;
}

function rolloutTable(run, query, go) {
  const table = new RowTable({
    label: 'Rollouts',
    columns: [
      ['reward', 'reward', (row) => rewardCell(row), true],
      ['group', 'rollout', (row) => [el('span', null, row.group), el('span.quiet', null, ` / ${row.sample}`)], true],
      ['task', 'task', (row) => [row.env, el('span.quiet', null, ` ${row.split} ${row.task}`)], true],
      ['outcome', 'ended', (row) => [outcomePill(row.outcome), row.failure ? el('span.quiet', null, ' ' + row.failure) : null], true],
      ['turns', 'turns', (row) => count(row.turns), true],
      ['sampled', 'sampled', (row) => short(row.sampled), true],
      ['attempt', 'attempt', (row) => (row.attempt > 1 ? el('b', null, row.attempt) : row.attempt || '–'), true],
      ['why', 'why', (row) => row.why, true],
    ],
    fetchRows: (offset, limit) => api('rollouts', { run, ...query, offset, limit }),
    pathOf: (row, place) => path(['run', run, 'rollout', row.key], { ...query, at: place }),
    onSort: (sort) => go({ ...query, sort: sort.by, descending: sort.descending ? '1' : '' }),
  });
  table.showSort({ by: query.sort || '', descending: query.descending === '1' });
  return table;
}

function rewardCell(row) {
  return el('span.reward', { class: verdictOf(row.reward) }, rewardText(row.reward));
}

function filterBar(facets, query, go) {
  const set = (name) => (event) => go({ ...query, [name]: event.target.value });
  const choice = (name, words, values) => el('label', null, el('span', null, words), el('select', { onchange: set(name) },
    el('option', { value: '' }, 'all'),
    Object.entries(values).map(([value, times]) => el('option', { value, selected: query[name] === value }, `${SAID[value] || value} (${count(times)})`))));
  let waiting = 0;
  const search = el('input', {
    type: 'search', id: 'search', placeholder: 'job, environment, task or reason', value: query.text || '', 'aria-label': 'Search',
    oninput: (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => go({ ...query, text: event.target.value }), 200);
    },
  });
  return el('form.filters', { onsubmit: (event) => event.preventDefault() },
    search,
    choice('reward', 'reward', { solved: facets.verdicts.solved || 0, failed: facets.verdicts.failed || 0 }),
    choice('outcome', 'ended', facets.outcomes),
    Object.keys(facets.failures).length ? choice('failure', 'failure', facets.failures) : null,
    Object.keys(facets.envs).length > 1 ? choice('env', 'environment', facets.envs) : null,
    query.group ? el('button', { type: 'button', onclick: () => go({ ...query, group: '' }) }, `group ${query.group} ✕`) : null);
}

function cards(facts, go) {
  const { verdicts, histogram } = facts.listed;
  const solved = verdicts.solved || 0;
  const known = solved + (verdicts.failed || 0);
  const some = known < facts.graded;
  return [
    card('rollouts', count(facts.rollouts), stateBar(facts.states, facts.rollouts, facts.acked || 0), many(facts.groups, 'group')),
    card('reward', fixed(facts.reward_mean, 3), known ? bars(histogram) : null, `mean of ${count(facts.graded)} graded${some && known ? `; bars of ${count(known)}` : ''}`),
    card('solved', percent(known ? solved / known : null), null, known ? `${count(solved)} of ${count(known)}${some ? ' that are listed below' : ''}` : 'no graded rollout is listed'),
    card('ended', null, outcomeBars(facts.outcomes, facts.rollouts, go), null),
    facts.spent ? card('time', null, spentBars(facts.spent), null) : null,
    facts.slots === undefined ? null : card('workers', `${facts.busy} / ${facts.slots}`, null,
      `slots of ${facts.workers} live ${facts.workers === 1 ? 'worker' : 'workers'}${facts.policy ? `, policy of step ${facts.policy.step}` : ''}`),
  ];
}

function card(name, value, picture, words) {
  return el(`section.card.card-${name}`, { 'aria-label': name }, el('h2', null, name), value === null ? null : el('b', null, value), picture, words ? el('p', null, words) : null);
}

// `acked` of those that are done are acknowledged.
function stateBar(states, all, acked) {
  const order = ['done', 'leased', 'queued', 'surplus', 'dead', 'unreadable'];
  const shown = order.filter((state) => states[state]);
  const parts = [['acked', acked], ...shown.map((state) => [state, states[state] - (state === 'done' ? acked : 0)])].filter(([, times]) => times > 0);
  const said = shown.map((state) => [state, `${count(states[state])} ${SAID[state] || state}`]);
  if (acked) said.splice(1, 0, ['acked', `${count(acked)} of them acknowledged`]);
  return [
    el('div.bar', { role: 'img', 'aria-label': said.map(([, text]) => text).join(', ') },
      parts.map(([state, times]) => el(`i.${state}`, { style: { width: `${(100 * times) / all}%` }, title: `${count(times)} ${SAID[state] || state}` }))),
    el('p.legend', null, said.map(([state, text]) => el(`span.${state}`, null, text))),
  ];
}

function bars({ low, high, counts }) {
  const most = Math.max(1, ...counts);
  return el('div.histogram', { role: 'img', 'aria-label': 'Histogram of rewards' }, counts.map((times, place) => {
    const from = low + ((high - low) * place) / counts.length;
    return el('i', { style: { height: `${Math.max(times ? 6 : 1, (100 * times) / most)}%` }, title: `from ${rewardText(from)}: ${count(times)}`, class: times ? '' : 'none' });
  }));
}

function outcomeBars(outcomes, all, go) {
  const most = Object.entries(outcomes).sort((a, b) => b[1] - a[1]).slice(0, 5);
  return el('ul.meters', null, most.map(([outcome, times]) => el('li', null,
    el('button', { type: 'button', onclick: () => go({ outcome }) }, SAID[outcome] || outcome), meter(times / all, OUTCOMES[outcome]), el('span', null, count(times)))));
}

function spentBars(spent) {
  const all = Object.values(spent).reduce((a, b) => a + b, 0);
  if (!all) return el('p.empty', null, 'no worker has told of its time');
  const most = Object.entries(spent).sort((a, b) => b[1] - a[1]).slice(0, 4);
  return el('ul.meters', null, most.map(([what, seconds]) => el('li', null, el('span', null, what), meter(seconds / all, what), el('span', null, percent(seconds / all)))));
}

function meter(share, kind) {
  return el('div.meter', { 'aria-hidden': 'true' }, el('i', { class: kind || '', style: { width: `${100 * share}%` } }));
}

function groupList(run, answer) {
  if (!answer.groups.length) return el('p.empty', null, 'No group fits.');
  const rows = answer.groups.map((group) => el('li', null, el('a', { href: path(['run', run, 'group', group.group]) },
    el('b', null, group.group), el('span.quiet', null, `${group.env} ${group.split} ${group.task}`),
    el('span.members', null, group.members.map((row) => el('i', { class: `${verdictOf(row.reward)} ${row.outcome}`, title: `${row.sample}: ${row.outcome}, reward ${rewardText(row.reward)}` }))),
    el('span', null, group.mean === null ? '–' : `mean ${group.mean.toFixed(2)}`),
    el('span', { class: group.spread ? '' : 'quiet' }, spreadOf(group)),
    el('span', null, group.state ? outcomePill(group.state) : null))));
  return [el('ul.groups', null, rows),
    answer.total > rows.length ? el('p.note', null, `The first ${rows.length} of ${count(answer.total)} groups: filter them above.`) : null];
}

function spreadOf(group) {
  const all = group.members.length;
  if (group.ended < all) return group.state === 'acked' ? `${group.ended} of ${all} seen` : `${group.ended} of ${all} ended`;
  if (group.spread === null) return '';
  return group.spread ? `spread ${group.spread.toFixed(2)}` : 'no spread: no advantage';
}

function deadList(run, answer, requeue) {
  if (!answer.rows.length) return el('p.empty', null, 'No rollout has died.');
  return [
    requeue && answer.rows.length > 1 ? el('p.again', null, el('button.act', { type: 'button', onclick: () => requeue(answer.rows.map((row) => row.job)) }, `Play these ${count(answer.rows.length)} again`)) : null,
    el('ul.dead', null, answer.rows.map((row) => el('li', null,
      el('div', null, pill(row.failure || row.outcome, 'bad'), el('a', { href: path(['run', run, 'rollout', row.key]) }, row.job),
        el('span.quiet', null, `${row.env} ${row.split} ${row.task}, attempt ${row.attempt}, ${row.turns} turns`),
        requeue ? el('button.act', { type: 'button', onclick: () => requeue([row.job]) }, 'Play again') : null),
      row.why ? el('p.said', null, row.why) : null))),
    answer.total > answer.rows.length ? el('p.note', null, `The first ${answer.rows.length} of ${count(answer.total)}.`) : null,
  ];
}

// A group side by side: a column for each member, a row for each turn.
function sideBySide(run, pages) {
  const shown = pages.flatMap((page, member) => (page.error === undefined ? [member] : []));
  const turns = pages.map((page) => page.entries.filter((entry) => entry.turn !== null));
  const replies = pages.map((page) => repliesByTurn(page));
  const most = Math.max(0, ...turns.map((own) => own.length));
  const signature = (entry) => (entry ? JSON.stringify([entry.text, entry.calls]) : null);
  let same = 0;
  while (same < most && shown.every((member) => signature(turns[member][same]) === signature(turns[shown[0]][same]))) same += 1;
  const grid = el('div.beside', { role: 'table', 'aria-label': 'Members side by side', style: { '--members': String(pages.length) } });
  grid.append(el('div.heads', { role: 'row' }, pages.map((page) => memberHead(run, page))));
  for (let turn = 0; turn < most; turn += 1) {
    if (turn === same && shown.length > 1) grid.append(el('p.parts', null, same ? `The same up to here: ${same} ${same === 1 ? 'turn' : 'turns'}. Here they part.` : 'They part at the first turn.'));
    grid.append(el('div.turn', { role: 'row', class: turn < same ? 'same' : '' }, turns.map((own, member) => turnCell(own[turn], replies[member].get(turn) || [], turn))));
  }
  if (most && same === most && shown.length > 1) grid.append(el('p.parts', null, 'All of them did the same.'));
  return grid;
}

function repliesByTurn(page) {
  const found = new Map();
  let turn = null;
  for (const entry of page.entries) {
    if (entry.turn !== null) found.set((turn = entry.turn), []);
    else if (turn !== null) found.get(turn).push(entry);
  }
  return found;
}

function memberHead(run, page) {
  const name = [el('b', null, rewardText(page.reward)), ` sample ${page.sample}`];
  if (page.error !== undefined) {
    return el('div.member', { role: 'columnheader', class: verdictOf(page.reward) }, name, el('p.pills', null, outcomePill(page.outcome)),
      page.error ? el('p.error', null, page.error) : el('p.quiet', null, 'Acknowledged: its conversation is in your exported file.'));
  }
  return el('div.member', { role: 'columnheader', class: verdictOf(page.reward) },
    el('a', { href: path(['run', run, 'rollout', page.key]) }, name),
    el('p.pills', null, outcomePill(page.stop || page.state), page.failure ? pill(page.failure, 'bad') : null, gradeParts(page)),
    el('p.quiet', null, `${page.turns} turns, ${count(page.tokens.sampled)} sampled${page.failed_calls.length ? `, ${page.failed_calls.length} failed ${page.failed_calls.length === 1 ? 'call' : 'calls'}` : ''}`));
}

function turnCell(entry, replies, turn) {
  if (!entry) return el('div.cell.none', { role: 'cell' });
  return el('div.cell', { role: 'cell' },
    el('span.quiet', null, `turn ${turn}`),
    entry.reasoning ? el('p.reasoning', null, cut(entry.reasoning, 160)) : null,
    entry.text ? el('p', null, cut(entry.text, 300)) : null,
    entry.calls.map((call) => el('p.call', null, el('strong', null, call.name), ' ', cut(pretty({ role: 'tool', text: call.arguments }).replace(/\s+/g, ' '), 160))),
    (entry.errors || []).map((error) => el('p.error', null, cut(error, 160))),
    replies.map((reply) => el('p.reply', { class: reply.failed ? 'failed' : reply.role }, cut(reply.text, 160))));
}

function cut(text, most) {
  return text.length > most ? text.slice(0, most) + ' …' : text;
}
