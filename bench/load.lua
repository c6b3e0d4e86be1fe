-- Sends the requests of a file repeatedly, and prints the results as one line of JSON.
--
--     wrk … -H 'Authorization: …' -s load.lua URL -- METHOD FILE [BODY]
--
-- FILE contains a path with its query on each line. Requests are sent in steps of several lines, and each thread starts
-- at another line, so that neither adjacent lines nor the threads of wrk request neighbouring pages.

local LEAP = 617 -- a prime: every line is reached unless the number of lines is a multiple of it

local threads = 0
local requests = {}
local at

function setup(thread)
   thread:set("offset", threads * 7919)
   threads = threads + 1
end

function init(args)
   local method, file, body = args[1], args[2], args[3]
   for path in io.lines(file) do
      requests[#requests + 1] = wrk.format(method, path, nil, body)
   end
   at = offset % #requests
end

function request()
   at = (at + LEAP) % #requests
   return requests[at + 1]
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"seconds":%.6f,"bytes":%d,"p50_us":%d,"p99_us":%d,"bad_statuses":%d,"broken":%d}\n',
      summary.requests, summary.duration / 1e6, summary.bytes, latency:percentile(50), latency:percentile(99),
      errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
