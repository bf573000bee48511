-- Load for wrk: POSTs the lines of a file in turn as JSON bodies, and ends with one line of JSON about the run.
-- Latencies are in microseconds.

local requests = {}
local last = 0

function init(args)
  for body in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, body)
  end
end

function request()
  last = last % #requests + 1
  return requests[last]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"duration_us":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d,"max_us":%d,'
      .. '"status":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d}\n',
    summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max,
    errors.status, errors.connect, errors.read, errors.write, errors.timeout
  ))
end
