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
-- reply  groups dropped (of the run, or stale) step (the published one; '': none) published (times) bound (on staleness;
--          '': none), then for each group: name seq size handed started (no token is older than this step; '': not known), then the state of each member
--        | wait time known sealed open ready others (groups that others hold) last (1: no more come than are ready)
--          over (1: none will come) dropped (groups) ends_s (until the first hold ends; -1: there is none)
--          step published
--        | again (a record could not be read, or groups were too old: ask again) | fenced | large most (groups of a batch)
local wanted, token, hold_s, purpose, owner = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local since, ordered, exact, again, wake = tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9] == '1', ARGV[10] == '1', ARGV[11] == '1'
local fill = ARGV[12] == '1'
local ready, open, held = prefix .. 'ready:' .. purpose, prefix .. 'open:' .. purpose, prefix .. 'held:' .. purpose
local holds, waiting, hold = prefix .. 'holds:' .. purpose, prefix .. 'waiting:' .. purpose, prefix .. 'hold:' .. token
local session, time = session_of(token), now()
if since == 0 then since = time end
local sealed, known, most, staleness, step, published =
  unpack(checked('run', 'hash', 'HMGET', 'sealed', 'seq', 'batch', 'staleness', 'step', 'published'))
step, published = step or (most and '0') or '', stored_number(published)
most = purpose == 'train' and most and stored_number(most) -- nil or false: without admission
local bound = most and published > 0 and tostring(whole(staleness, 0, MOST) or 0) or ''
local LIMIT = 1000

-- Those that are to be replaced: dropped and stale ones.
local function dropped()
  return stored_number(field('count', 'groups_dropped')) + stored_number(field('count', 'skipped:stale'))
end

local function hand_out(groups)
  local reply = { 'groups', dropped(), step, published, bound }
  for _, group in ipairs(groups) do
    local row = { group.name, tostring(group.seq), group.size, group.handed, group.started }
    for sample = 0, group.members - 1 do
      local state = group.dead + group.surplus > 0 and field('job:' .. member(group.name, sample), 'state')
      -- A member that cannot be read counts as done: the consumer finds out when it reads its journal, and rejects it.
      row[#row + 1] = (state == 'dead' or state == 'surplus') and state or 'done'
    end
    reply[#reply + 1] = row
  end
  redis.call('HDEL', waiting, session)
  return reply
end

-- Skips the next groups that began under a policy that is too old by now, and says whether there were any. Admission
-- sees to it that no group gets there, unless a trainer went on without it: it took a short batch, or a consumer died.
local function skip_old()
  local old = {}
  for _, name in ipairs(checked('ready:train', 'zset', 'ZRANGE', 0, wanted - 1)) do
    local started = whole(field('group:' .. name, 'started'), 0, MOST)
    if started and stored_number(step) - started > stored_number(staleness) then old[#old + 1] = name end
  end
  if #old == 0 then return false end
  check_indexes()
  local stale = typed('stale', 'set')
  allow_without_memory()
  for _, name in ipairs(old) do
    local group = group_or_drop(name, time)
    if group then
      redis.call('ZREM', ready, name)
      shrink(group, token)
      redis.call('SADD', stale, name)
      count('groups_skipped')
      count('skipped', group.done)
      count('skipped:stale')
    end
  end
  wake_producers()
  return true
end

local function give_back_what_ran_out()
  check_indexes()
  typed('holds:' .. purpose, 'zset')
  allow_without_memory()
  local last, grace = stored_number(field('run', 'heard:' .. purpose)), time + constants.grace_s
  if time - last > constants.outage_s then
    -- A hold that had ended before the silence began gets no grace.
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '(' .. seconds(last), seconds(grace))) do
      redis.call('ZADD', held, grace, name)
    end
  end
  stamp(purpose, time)
  local ended = redis.call('ZRANGEBYSCORE', held, '-inf', time, 'LIMIT', 0, LIMIT)
  for _, name in ipairs(ended) do
    local group = group_or_drop(name, time)
    redis.call('ZREM', held, name)
    if group and group.state == 'held' then
      end_hold(purpose, group.token or '') -- its groups end together
      redis.call('HSET', group.key, 'state', 'ready')
      redis.call('ZADD', ready, group.seq, name)
    end
  end
  if #ended > 0 then wake_consumers(purpose) end
end

-- Whether any group of the hold can come back; a group that was dropped as damaged cannot.
local function has_groups(of)
  for _, name in ipairs(redis.call('SMEMBERS', typed('hold:' .. of, 'set'))) do
    if redis.call('ZSCORE', held, name) then return true end
  end
  end_hold(purpose, of)
  return false
end

-- How many groups other consumers hold, whether each of them has renewed since, and whether each is waiting, too.
local function look_at_others()
  local groups, renewed, idle, mine = redis.call('ZCARD', held), true, true, {}
  local rows = redis.call('ZRANGE', holds, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local of = session_of(rows[i])
    if of == session then
      groups = groups - redis.call('SCARD', prefix .. 'hold:' .. rows[i])
      mine[#mine + 1] = rows[i]
    else
      local at = stored_number(rows[i + 1])
      if at < since or at > time then renewed = renewed and not has_groups(rows[i]) end
      idle = idle and redis.call('HEXISTS', waiting, of) == 1
    end
  end
  return groups, renewed, idle, mine
end

-- The trainer asks for that many groups in place of some that it skipped: their places are free.
local function give_back_places(number)
  redis.call('HINCRBY', prefix .. 'run', 'lent', -number)
  set_trained(stored_number(field('run', 'trained')) - number, stored_number(step), most)
  wake_producers()
end

-- A named consumer's successor need not fill the batch.
local function is_whole()
  local consumer = fill and consumer_of(token)
  if consumer then redis.call('HDEL', consumer, 'filling') end
end

if taken_over(token, owner) then return { 'fenced' } end
if most and wanted > most then return { 'large', most } end
ordered = ordered or most
local mine = {}
if #checked('hold:' .. token, 'set', 'SMEMBERS') > 0 then
  check_indexes()
  allow_without_memory()
  local names = {}
  mine = held_groups(token, time)
  for i, group in ipairs(mine) do
    names[i], group.handed = group.name, math.max(0, group.handed - 1)
  end
  if #mine == 0 then
    end_hold(purpose, token)
  else
    renew_hold(purpose, token, names, time, hold_s)
    if not fill or #mine >= wanted then
      is_whole()
      return hand_out(mine)
    end
  end
end
wanted = wanted - #mine
local some_held = checked('held:' .. purpose, 'zset', 'ZCARD') > 0
if some_held then give_back_what_ran_out() end
if most and not again and skip_old() then return { 'again' } end

local count_open, count_ready = checked('open:' .. purpose, 'zset', 'ZCARD'), checked('ready:' .. purpose, 'zset', 'ZCARD')
local others, renewed, idle, own = 0, true, true, {}
if some_held then others, renewed, idle, own = look_at_others() end
local last = sealed and count_open == 0 and (others == 0 or renewed)
local lent = most and not again and stored_number(field('run', 'lent')) or 0
local there = again and 0 or count_ready
if ordered and there > 0 and count_open > 0 then
  there = redis.call('ZCOUNT', ready, '-inf', '(' .. redis.call('ZRANGE', open, 0, 0, 'WITHSCORES')[2])
end

if there >= wanted or (last and not exact and there + #mine > 0) then
  check_indexes()
  allow_without_memory()
  local groups, all = {}, mine
  local number = math.min(wanted, there)
  for _, name in ipairs(number > 0 and redis.call('ZRANGE', ready, 0, number - 1) or {}) do
    local group = group_or_drop(name, time)
    if not group or group.state ~= 'ready' then
      redis.call('ZREM', ready, name)
      return { 'again' }
    end
    groups[#groups + 1], all[#all + 1] = group, group
  end
  table.sort(all, function(a, b) return a.seq < b.seq end)
  local reply = hand_out(all)
  for _, group in ipairs(groups) do
    redis.call('ZREM', ready, group.name)
    redis.call('ZADD', held, time + hold_s, group.name)
    redis.call('SADD', hold, group.name)
    redis.call('HSET', group.key, 'state', 'held', 'token', token, 'handed', group.handed + 1)
    if group.handed > 0 then count('redelivered') end
  end
  redis.call('ZADD', holds, time, token)
  if lent > 0 and #groups > 0 and #groups <= lent then give_back_places(#groups) end -- more are another batch
  local consumer = consumer_of(token)
  if consumer and step_of(token) >= stored_number(redis.call('HGET', consumer, 'next')) then
    redis.call('HSET', consumer, 'next', step_of(token) + 1)
  end
  is_whole()
  stamp(purpose, time)
  return reply
end

if lent > 0 then
  allow_without_memory()
  give_back_places(lent)
end
local over = sealed and count_open == 0 and count_ready == 0 and #mine == 0 and (others == 0 or (renewed and idle))
local ends = others > 0 and redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
if wake and not over then
  redis.call('DEL', prefix .. 'wake:' .. session)
  checked('waiting:' .. purpose, 'hash', 'HSET', session, wanted)
  redis.call('EXPIRE', waiting, constants.wake_s)
  for _, of in ipairs(own) do redis.call('ZADD', holds, 'XX', time, of) end -- alive
end
return { 'wait', seconds(time), known and 1 or 0, sealed and 1 or 0, count_open, count_ready, others, last and 1 or 0,
  over and 1 or 0, dropped(), ends and seconds(math.max(0, ends - time)) or '-1',
  step, published }
