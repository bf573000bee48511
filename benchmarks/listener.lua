-- Posts one body of ARG[1] bytes again and again.
function init(args)
   wrk.method = "POST"
   wrk.headers["Content-Type"] = "application/octet-stream"
   wrk.body = string.rep("x", tonumber(args[1]))
end
