# make test [ROS=kilted|jazzy] [PYTHON=python3.12]    build the environment, run the whole suite
# make lint                                           ruff, mypy
# make env                                            the environment alone
# make clean                                          remove it

PYTHON ?= python3
ROS ?= kilted

# A sourced ROS 2 wins over the wheels: its rclpy is seen through the system site packages.
ifneq ($(AMENT_PREFIX_PATH),)
  VENV := .venv-$(or $(ROS_DISTRO),system)
  VENV_OPTIONS := --system-site-packages
  EXTRAS := test,lint
else ifneq ($(filter $(ROS),kilted jazzy),)
  VENV := $(if $(filter kilted,$(ROS)),.venv,.venv-$(ROS))
  VENV_OPTIONS :=
  EXTRAS := $(ROS),test,lint
else
  $(error ROS=$(ROS) is not known: use ROS=kilted or ROS=jazzy, or source a ROS 2 installation)
endif
BIN := $(VENV)/bin
READY := $(VENV)/ready

# The ROS wheels re-execute Python once; a guard inherited from another environment would stop that.
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE

.PHONY: env test lint clean

# The wheels' ament index is in the environment itself.
test: $(READY)
	AMENT_PREFIX_PATH=$(or $(AMENT_PREFIX_PATH),$(abspath $(VENV))) $(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

env: $(READY)

# The stamp is written last, so that an interrupted installation is taken up again.
$(READY): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is not Python 3.10 to 3.13: choose one with make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) has no venv module: apt install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf .venv .venv-* build dist *.egg-info
