-- Which of the active runs must be reaped now (reap.lua). For the others it does all that a reap would: it notes that the
-- run was reaped (run: beat, grace), and that holds can be renewed (run: heard).
-- A run that cannot be read must be reaped, too, which says why.
-- reads and writes  rollq:active; of its runs: run leased queued held:<purpose>
-- KEYS[1]  'rollq:', the prefix of all runs
-- ARGV   first and last place in the list; 1 if for some queue nothing waits at the broker
-- reply  ok names due idle (runs without jobs) queued (the number of jobs)
local time, names = now(), redis_call('ZRANGE', prefix .. 'active', ARGV[2], ARGV[3])
local due, idle, jobs, is_empty = {}, {}, 0, ARGV[4] == '1'
allow_without_memory()

local function score(key, place)
  return tonumber(redis_call('ZRANGE', key, place, place, 'WITHSCORES')[2])
end

local function must_send(queued)
  if score(queued, 0) <= time or score(queued, -1) > time + constants.confirmed_s then return true end
  local from, to = time + constants.longest_backoff_s + constants.sending_s, time + constants.confirmed_s - constants.sending_s
  return is_empty and redis_call('ZCOUNT', queued, from, to) > 0
end

local function must_reap(name)
  prefix = 'rollq:{' .. name .. '}:'
  local leased, queued = prefix .. 'leased', prefix .. 'queued'
  local first, waiting = score(leased, 0), redis_call('ZCARD', queued)
  if not first and waiting == 0 then
    idle[#idle + 1] = name
    return false
  end
  jobs = jobs + waiting
  local has_grace = in_grace(time)
  if not has_grace then stamp_held(time) end
  if first and (score(leased, -1) > time + constants.lease_s or first <= time and not has_grace) then return true end
  return waiting > 0 and must_send(queued)
end

for _, name in ipairs(names) do
  local was_read, must = pcall(must_reap, name)
  if must or not was_read then due[#due + 1] = name end
end
return { 'ok', 'names', names, 'due', due, 'idle', idle, 'queued', jobs }
