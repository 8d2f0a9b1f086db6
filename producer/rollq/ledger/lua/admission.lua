-- Admission: how many new groups for training may enter, so that no batch is older than the run allows. The numbers are
-- pinned by admit.lua; docs/ledger.md says why they hold the bound.

-- What the run admits and how far its trainer is; nil when it has no admission. Before the first publication the step
-- is 0.
local function read_admission()
  local got = checked('run', 'hash', 'HMGET', 'batch', 'staleness', 'running', 'step', 'trained')
  local batch = whole(got[1], 1, MOST)
  if not batch then return nil end
  return { batch = batch, staleness = whole(got[2], 0, MOST) or 0, running = whole(got[3], 0, MOST) or 0,
    step = whole(got[4], 0, MOST) or 0, trained = stored_number(got[5]) }
end

-- How many groups may enter now; 0 or less: none.
local function capacity(bound)
  local function number(place) return redis.call('ZCARD', prefix .. place .. ':train') end
  local open = number('open')
  local left = (bound.staleness + bound.step + 1) * bound.batch - open - number('ready') - number('held') - bound.trained
  return bound.running > 0 and math.min(bound.running - open, left) or left
end

-- That many groups are trained. A published step has used its batches, even if a trainer took fewer groups of them, or
-- began at a later step: with those that are held, there are never fewer.
local function set_trained(number, step, batch)
  local held = redis.call('ZCARD', prefix .. 'held:train')
  redis.call('HSET', prefix .. 'run', 'trained', math.max(number, step * batch - held))
end
