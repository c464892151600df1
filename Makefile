# make help                                           this list
# make test [ROS=kilted|jazzy] [PYTHON=python3.12]    build the environment, run the whole suite
#           [WORKERS=2]                               in so many processes
# make test-slow                                      the tests that take minutes
# make test-faults                                    the whole fault suite, and its table
# make demo [DEMO='--act 2']                          three acts that show the gain, by the nodes
# make pictures                                       the pictures of the pages, from the simulation
# make docs                                           the pages, into docs/_build/html
# make lint                                           ruff, mypy
# make env                                            the environment alone
# make clean                                          remove it

PYTHON ?= python3
ROS ?= kilted
WORKERS ?= 2

# A sourced ROS 2 wins over the wheels: its rclpy is seen through the system site packages.
ifneq ($(ROS_DISTRO),)
  VENV := .venv-sourced-$(ROS_DISTRO)
  VENV_OPTIONS := --system-site-packages
  EXTRAS := fast,learning,bags,report,view,docs,test,lint
else ifneq ($(filter $(ROS),kilted jazzy),)
  VENV := $(if $(filter kilted,$(ROS)),.venv,.venv-$(ROS))
  VENV_OPTIONS :=
  EXTRAS := $(ROS),fast,learning,bags,report,view,docs,test,lint
else
  $(error ROS=$(ROS) is not known: use ROS=kilted or ROS=jazzy, or source a ROS 2 installation)
endif
BIN := $(VENV)/bin
READY := $(VENV)/ready
PYTEST := $(BIN)/python -m pytest
ifeq ($(ROS_DISTRO),)
  # The wheels' ament index is in the environment itself.
  PYTEST := AMENT_PREFIX_PATH=$(abspath $(VENV)) $(PYTEST)
endif

# The ROS wheels re-execute Python once; a guard inherited from another environment would stop that.
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE

.PHONY: help env test test-slow test-faults demo docs pictures lint clean

# What is to be done without a word is to tell what can be done.
.DEFAULT_GOAL := help
help:
	@sed -n '/^#/!q; s/^# \?//p' $(firstword $(MAKEFILE_LIST))

# Files of tests are shared out to WORKERS processes.
test: $(READY)
	$(PYTEST) -n $(WORKERS) --dist loadfile

test-slow: $(READY)
	$(PYTEST) -m slow

test-faults: $(READY)
	$(PYTEST) -m '' test/faults

demo: $(READY)
	$(BIN)/hydranet demo $(DEMO)

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

pictures: $(READY)
	$(BIN)/python docs/pictures.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

env: $(READY)

# The stamp is written last, so that an interrupted installation is taken up again. GTSAM is an
# oracle of the tests; its wheel asks for pytest 9, which it does not need, so it goes in alone.
$(READY): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is not Python 3.10 to 3.13: choose one with make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) has no venv module: apt install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation -e '.[$(EXTRAS)]'
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' && \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gtsam || \
	  echo "no GTSAM for this Python: the tests that compare with it are skipped"
	touch $@

clean:
	rm -rf .venv .venv-* build dist docs/_build *.egg-info
