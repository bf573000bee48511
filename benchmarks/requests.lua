-- Load for wrk: POSTs the requests of a file in turn (benchmarks/requests.py says how it is made), and ends with one
-- line of JSON about the run. Latencies are in microseconds.

local requests = {}
local last = 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for line in file:lines() do
    local size, headers = line:match("^(%d+)\t(.*)$")
    local named = {}
    for name, value in headers:gmatch("([^:\t]+): ([^\t]*)") do
      named[name] = value
    end
    requests[#requests + 1] = wrk.format("POST", nil, named, file:read(tonumber(size)))
    file:read(1)
  end
  file:close()
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
