-- Admission: how many new groups for training may enter, so that no batch is older than the run allows. The numbers are
-- pinned by admit.lua; docs/ledger.md says why they hold the bound.

-- What the run admits and how far its trainer is; nil when it has no admission. Before the first publication the step
-- is 0.
local function read_admission()
  local got = redis_call('HMGET', prefix .. 'run', 'batch', 'staleness', 'running', 'step', 'trained')
  if not got[1] then return nil end
  local function at(place) return number(got[place], prefix .. 'run') end
  return { batch = at(1), staleness = at(2), running = at(3), step = at(4), trained = at(5) }
end

-- How many groups may enter now; 0 or less: none.
local function capacity(bound)
  local function groups(place) return redis_call('ZCARD', prefix .. place .. ':train') end
  local open = groups('open')
  local left = (bound.staleness + bound.step + 1) * bound.batch - open - groups('ready') - groups('held') - bound.trained
  return bound.running > 0 and math.min(bound.running - open, left) or left
end

-- That many groups are trained. A published step has used its batches, even if a trainer took fewer groups of them, or
-- began at a later step: with those that are held, there are never fewer.
local function set_trained(groups, step, batch)
  local held = redis_call('ZCARD', prefix .. 'held:train')
  redis_call('HSET', prefix .. 'run', 'trained', math.max(groups, step * batch - held))
end
