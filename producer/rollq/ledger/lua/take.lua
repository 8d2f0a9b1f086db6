-- Hand out groups, the lowest sequence first, all or none. Fewer only as the last batch of a sealed run: when no group
-- is open and every hold of another consumer was renewed since this one began to wait, so that none of them comes back.
-- A repeat under the same token gets the same groups. With `fill`, a hold that has fewer groups than are wanted gets as
-- many more as it lacks, all or none: it lost some to a filter (ack.lua).
-- A hold that is not renewed ends; after a silence of all reapers and takers (run: heard:<purpose>) Redis may have been
-- away, and live consumers get the time to renew first.
-- In a run with admission (run: staleness, batch) train groups go in the order of submission, and at most `batch` of
-- them, because both hold the bound on staleness. A group that is older than the bound is skipped instead.
-- A consumer that gets nothing may have itself woken (settle.lua: wake_consumers). An idle one asks for little.
-- reads and writes  run open:<purpose> ready:<purpose> held:<purpose> holds:<purpose> waiting:<purpose> count
--                   hold:<token> wake:<session> consumer:<purpose>:<name> group:<group> job:<job> acked:<group>
--                   prompts:<group> journal:<job> journal:<job>#<attempt> stale
-- ARGV   groups token hold_s purpose owner ('': no name) since (when it began to wait; 0: now), then flags (1 or 0):
--        ordered (no group before an open one of lower sequence) exact (no short batch) again (only what is held
--        already) wake (when there may be more) fill (up to that number what is held already)
-- reply  groups dropped (groups of the run, or stale) step (the published one; '': none) published (times) bound (on
--          staleness; '': none) groups (each as name seq size handed started (no token is older than this step; '': not
--          known) states (of its members))
--        | wait time exists (1: the run does) sealed open ready others (groups that others hold) last (1: no more come
--          than are ready) over (1: none will come) dropped (groups) ends_s (until the first hold ends; -1: there is
--          none) step published
--        | again (groups were too old: ask again) | fenced | large most (groups of a batch)
local wanted, token, hold_s, purpose, owner = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local since, ordered, exact, again = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9] == '1', ARGV[10] == '1'
local wake, fill = ARGV[11] == '1', ARGV[12] == '1'
local ready, open, held = prefix .. 'ready:' .. purpose, prefix .. 'open:' .. purpose, prefix .. 'held:' .. purpose
local holds, waiting, hold = prefix .. 'holds:' .. purpose, prefix .. 'waiting:' .. purpose, prefix .. 'hold:' .. token
local session, time = session_of(token), now()
if since == 0 then since = time end
local sealed, seq, most, staleness, step, published =
  unpack(redis_call('HMGET', prefix .. 'run', 'sealed', 'seq', 'batch', 'staleness', 'step', 'published'))
local function of_run(text) return number(text, prefix .. 'run') end
step, published = (step or most) and of_run(step) or '', of_run(published)
most = purpose == 'train' and most and of_run(most) -- nil or false: without admission
local bound = most and published > 0 and of_run(staleness) or ''
local LIMIT = 1000

-- Those that are to be replaced: dropped and stale ones.
local function dropped()
  local groups, stale = unpack(redis_call('HMGET', prefix .. 'count', 'groups_dropped', 'skipped:stale'))
  return number(groups, prefix .. 'count') + number(stale, prefix .. 'count')
end

local function hand_out(groups)
  local rows = {}
  for _, group in ipairs(groups) do
    local states = {}
    for sample = 0, group.members - 1 do
      local job = 'job:' .. member(group.name, sample)
      local state = group.dead + group.surplus == 0 and 'done' or field(job, 'state')
      if not ENDED[state] then damaged(prefix .. job, 'has not ended') end
      states[sample + 1] = state
    end
    rows[#rows + 1] = { 'name', group.name, 'seq', group.seq, 'size', group.size, 'handed', group.handed,
      'started', group.started, 'states', states }
  end
  redis_call('HDEL', waiting, session)
  return { 'groups', 'dropped', dropped(), 'step', step, 'published', published, 'bound', bound, 'groups', rows }
end

-- Skips the next groups that began under a policy that is too old by now, and says whether there were any. Admission
-- sees to it that no group gets there, unless a trainer went on without it: it took a short batch, or a consumer died.
local function skip_old()
  local old = {}
  for _, name in ipairs(redis_call('ZRANGE', prefix .. 'ready:train', 0, wanted - 1)) do
    local group = read_group(name)
    local is_old = group.started ~= '' and step - group.started > of_run(staleness)
    if is_old then old[#old + 1] = group end
  end
  if #old == 0 then return false end
  allow_without_memory()
  for _, group in ipairs(old) do
    redis_call('ZREM', ready, group.name)
    shrink(group, token)
    redis_call('SADD', prefix .. 'stale', group.name)
    count('groups_skipped')
    count('skipped', group.done)
    count('skipped:stale')
  end
  wake_producers()
  return true
end

local function give_back_what_ran_out()
  allow_without_memory()
  local last, grace = of_run(field('run', 'heard:' .. purpose)), time + constants.grace_s
  if time - last > constants.outage_s then
    -- A hold that had ended before the silence began gets no grace.
    for _, name in ipairs(redis_call('ZRANGEBYSCORE', held, '(' .. seconds(last), seconds(grace))) do
      redis_call('ZADD', held, grace, name)
    end
  end
  stamp(purpose, time)
  local ended = redis_call('ZRANGEBYSCORE', held, '-inf', time, 'LIMIT', 0, LIMIT)
  for _, name in ipairs(ended) do
    local group = read_group(name)
    redis_call('ZREM', held, name)
    end_hold(purpose, group.token) -- its groups end together
    redis_call('HSET', group.key, 'state', 'ready')
    redis_call('ZADD', ready, group.seq, name)
  end
  if #ended > 0 then wake_consumers(purpose) end
end

-- How many groups other consumers hold, whether each of them has renewed since, and whether each is waiting, too.
local function read_other_holds()
  local groups, renewed, idle, mine = redis_call('ZCARD', held), true, true, {}
  local rows = redis_call('ZRANGE', holds, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local of = session_of(rows[i])
    if of == session then
      groups = groups - redis_call('SCARD', prefix .. 'hold:' .. rows[i])
      mine[#mine + 1] = rows[i]
    else
      local at = tonumber(rows[i + 1])
      if at < since or at > time then renewed = false end
      idle = idle and redis_call('HEXISTS', waiting, of) == 1
    end
  end
  return groups, renewed, idle, mine
end

-- The trainer asks for that many groups in place of some that it skipped: their places are free.
local function give_back_places(places)
  redis_call('HINCRBY', prefix .. 'run', 'lent', -places)
  set_trained(of_run(field('run', 'trained')) - places, step, most)
  wake_producers()
end

-- A named consumer's successor need not fill the batch.
local function end_filling()
  local consumer = fill and consumer_of(token)
  if consumer then redis_call('HDEL', consumer, 'filling') end
end

if taken_over(token, owner) then return { 'fenced' } end
if most and wanted > most then return { 'large', 'most', most } end
ordered = ordered or most
local mine = {}
if #redis_call('SMEMBERS', prefix .. 'hold:' .. token) > 0 then
  allow_without_memory()
  local names = {}
  mine = held_groups(token)
  for i, group in ipairs(mine) do
    names[i], group.handed = group.name, math.max(0, group.handed - 1)
  end
  if #mine == 0 then
    end_hold(purpose, token)
  else
    renew_hold(purpose, token, names, time, hold_s)
    if not fill or #mine >= wanted then
      end_filling()
      return hand_out(mine)
    end
  end
end
wanted = wanted - #mine
local some_held = redis_call('ZCARD', prefix .. 'held:' .. purpose) > 0
if some_held then give_back_what_ran_out() end
if most and not again and skip_old() then return { 'again' } end

local count_open = redis_call('ZCARD', prefix .. 'open:' .. purpose)
local count_ready = redis_call('ZCARD', prefix .. 'ready:' .. purpose)
local others, renewed, idle, own = 0, true, true, {}
if some_held then others, renewed, idle, own = read_other_holds() end
local last = sealed and count_open == 0 and (others == 0 or renewed)
local lent = most and not again and of_run(field('run', 'lent')) or 0
local there = again and 0 or count_ready
if ordered and there > 0 and count_open > 0 then
  there = redis_call('ZCOUNT', ready, '-inf', '(' .. redis_call('ZRANGE', open, 0, 0, 'WITHSCORES')[2])
end

if there >= wanted or (last and not exact and there + #mine > 0) then
  allow_without_memory()
  local groups, all = {}, mine
  local taken = math.min(wanted, there)
  for _, name in ipairs(taken > 0 and redis_call('ZRANGE', ready, 0, taken - 1) or {}) do
    local group = read_group(name)
    groups[#groups + 1], all[#all + 1] = group, group
  end
  table.sort(all, function(a, b) return a.seq < b.seq end)
  local reply = hand_out(all)
  stamp(purpose, time) -- before there are new holds: it may set back those that there are
  for _, group in ipairs(groups) do
    redis_call('ZREM', ready, group.name)
    redis_call('ZADD', held, time + hold_s, group.name)
    redis_call('SADD', hold, group.name)
    redis_call('HSET', group.key, 'state', 'held', 'token', token, 'handed', group.handed + 1)
    if group.handed > 0 then count('redelivered') end
  end
  redis_call('ZADD', holds, time, token)
  if lent > 0 and #groups > 0 and #groups <= lent then give_back_places(#groups) end -- more are another batch
  local consumer = consumer_of(token)
  if consumer and step_of(token) >= number(redis_call('HGET', consumer, 'next'), consumer) then
    redis_call('HSET', consumer, 'next', step_of(token) + 1)
  end
  end_filling()
  return reply
end

if lent > 0 then
  allow_without_memory()
  give_back_places(lent)
end
local over = sealed and count_open == 0 and count_ready == 0 and #mine == 0 and (others == 0 or (renewed and idle))
local ends = others > 0 and redis_call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
if wake and not over then
  redis_call('DEL', prefix .. 'wake:' .. session)
  redis_call('HSET', prefix .. 'waiting:' .. purpose, session, wanted)
  redis_call('EXPIRE', waiting, constants.wake_s)
  for _, of in ipairs(own) do redis_call('ZADD', holds, 'XX', time, of) end -- alive
end
return { 'wait', 'time', seconds(time), 'exists', seq and 1 or 0, 'sealed', sealed and 1 or 0, 'open', count_open,
  'ready', count_ready, 'others', others, 'last', last and 1 or 0, 'over', over and 1 or 0, 'dropped', dropped(),
  'ends_s', ends and seconds(math.max(0, ends - time)) or '-1', 'step', step, 'published', published }
