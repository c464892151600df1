"""The chi-square distribution against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import chdtrc, chdtri

from hydranet_ros.geometry import chi_square

DEGREES = (1, 2, 3, 4, 5, 6, 9, 12, 15, 40)


@pytest.mark.parametrize("degrees", DEGREES)
def test_the_tail_is_that_of_scipy(degrees: int) -> None:
    values = np.concatenate([[0.0, 1e-12, 1e-3], np.geomspace(0.01, 1200.0, 200)])
    tails = [chi_square.tail(degrees, value) for value in values.tolist()]
    np.testing.assert_allclose(tails, chdtrc(degrees, values), rtol=1e-11, atol=1e-300)
    assert chi_square.tail(degrees, math.inf) == 0.0
    assert math.isnan(chi_square.tail(degrees, math.nan))


@pytest.mark.parametrize("degrees", DEGREES)
def test_the_quantile_is_that_of_scipy(degrees: int) -> None:
    chances = [1e-100, 1e-15, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.99, 0.999]
    found = [chi_square.quantile(degrees, chance) for chance in chances]
    np.testing.assert_allclose(found, chdtri(degrees, chances), rtol=1e-9)
    assert chi_square.quantile(degrees, 0.0) == math.inf
    assert chi_square.quantile(degrees, 1.0) == 0.0


@pytest.mark.parametrize("degrees", DEGREES)
def test_a_quantile_next_to_zero_is_where_the_tail_is(degrees: int) -> None:
    for missing in (1e-4, 1e-6, 1e-9):
        x = chi_square.quantile(degrees, 1.0 - missing)
        assert 1.0 - chi_square.tail(degrees, x) == pytest.approx(missing, rel=1e-5)


@pytest.mark.parametrize("degrees", [1, 2, 3, 6])
def test_the_logarithm_goes_on_below_the_smallest_number(degrees: int) -> None:
    near = chi_square.log_tail(degrees, 1300.0)
    assert near == pytest.approx(math.log(chdtrc(degrees, 1300.0)), rel=1e-12)
    far = [chi_square.log_tail(degrees, value) for value in (1300.0, 1400.0, 1e4, 1e6)]
    assert far == sorted(far, reverse=True)
    assert far[-1] == pytest.approx(-5e5, rel=1e-3)
