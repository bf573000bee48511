#!/bin/sh
# Plain curl: pictures, sounds, text, tensors as JSON, and what an error looks like.
#
#     examples/curl.sh [URL]
set -eu
url=${1:-${SERVE_APP_URL:-http://127.0.0.1:8000}}
data=$(dirname "$0")/../tests/data

echo "A picture, as a form with parameters:"
curl -sS "$url/v1/models/digits/predict" -F "file=@$data/digits/7_0783_320px_dark_cmyk.jpg" -F 'parameters={"top_k": 1}'
echo; echo

echo "A sound, as it is:"
curl -sS "$url/v1/models/spoken-digits/predict" -H 'Content-Type: audio/wav' \
     --data-binary "@$data/speech/seven_en-029_f1_80wpm_16000_8bit.wav" | cut -c 1-60
echo

echo "A text with labels to choose from, urgent, within two seconds:"
curl -sS "$url/v1/models/minilm/predict" -H 'Content-Type: application/json' \
     -H 'X-Priority: high' -H 'X-Timeout-Ms: 2000' -d '{
         "inputs": "The team scored in the last minute",
         "parameters": {"candidate_labels": ["cooking", "football"]}
     }'
echo; echo

echo "Tensors as JSON (Open Inference Protocol V2): 784 pixels of an empty picture"
pixels=$(yes -- -1 | head -n 784 | paste -sd , -)
curl -sS "$url/v2/models/digits/infer" -H 'Content-Type: application/json' -d '{
         "inputs": [{"name": "image", "shape": [1, 1, 28, 28], "datatype": "FP32", "data": ['"$pixels"']}],
         "parameters": {"priority": 1}
     }' | cut -c 1-100
echo

echo "A model that is not there:"
curl -sS "$url/v1/models/nothing/predict" -d 'x'
echo
