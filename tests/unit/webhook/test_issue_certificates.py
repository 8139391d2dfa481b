"""Certificates are renewed long before they end, and trusted before they are used."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from mizar_operator.webhook.issue_certificates import (
    CA_LIFE,
    SERVING_LIFE,
    SKEW,
    Bundle,
    fresh,
    from_secret,
    renewed,
)

NAME = "mizar-webhook.mizar-system.svc"
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return fresh(NAME, START)


def signers(bundle: Bundle) -> list[int]:
    """Which of the trusted authorities, newest first, has signed the certificate."""
    found = []
    for at, authority in enumerate(bundle.authorities):
        if bundle.certificate.issuer == authority.subject:
            bundle.certificate.verify_directly_issued_by(authority)
            found.append(at)
    return found


def test_the_first(bundle: Bundle) -> None:
    assert signers(bundle) == [0]
    names = bundle.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [NAME]
    assert bundle.certificate.not_valid_before_utc < START, "clocks differ"
    assert bundle.certificate.not_valid_after_utc == START + SERVING_LIFE


def test_a_secret_keeps_it(bundle: Bundle) -> None:
    again = from_secret(bundle.to_secret())
    assert again is not None
    assert (again.ca_pem, again.certificate_pem, again.key_pem) == (
        bundle.ca_pem,
        bundle.certificate_pem,
        bundle.key_pem,
    )


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_a_secret_that_is_broken_is_no_bundle(bundle: Bundle, key: str) -> None:
    whole, other = bundle.to_secret(), fresh(NAME, START).to_secret()
    assert from_secret({name: value for name, value in whole.items() if name != key}) is None
    assert from_secret(whole | {key: "bm8gcGVt"}) is None
    assert from_secret(whole | {key: other[key]}) is None


def test_nothing_is_renewed_too_early(bundle: Bundle) -> None:
    assert renewed(bundle, NAME, START) is None
    assert renewed(bundle, NAME, START + SERVING_LIFE * 0.6) is None


def test_the_certificate_is_renewed_with_a_month_to_spare(bundle: Bundle) -> None:
    now = START + SERVING_LIFE * 0.7
    new = renewed(bundle, NAME, now)
    assert new is not None
    assert new.authorities == bundle.authorities
    assert new.certificate.not_valid_after_utc == now + SERVING_LIFE
    assert renewed(new, NAME, now) is None


def test_nothing_and_expired_authorities_start_anew(bundle: Bundle) -> None:
    assert renewed(None, NAME, START) is not None
    new = renewed(bundle, NAME, START + CA_LIFE + timedelta(days=1))
    assert new is not None
    assert not set(new.authorities) & set(bundle.authorities)


def test_what_a_clock_that_was_ahead_made_is_made_anew() -> None:
    ahead = fresh(NAME, START + SKEW + timedelta(seconds=1))
    new = renewed(ahead, NAME, START)
    assert new is not None
    assert not set(new.authorities) & set(ahead.authorities)
    assert signers(new) == [0]
    assert new.certificate.not_valid_before_utc == START - SKEW
    assert renewed(new, NAME, START) is None


def test_a_clock_that_is_ahead_by_less_than_what_is_allowed_for_does_no_harm() -> None:
    assert renewed(fresh(NAME, START + SKEW), NAME, START) is None


def test_a_certificate_of_a_clock_that_was_ahead_is_signed_anew_by_the_same_authority(
    bundle: Bundle,
) -> None:
    ahead = renewed(bundle, NAME, START + SERVING_LIFE)
    assert ahead is not None
    assert ahead.certificate != bundle.certificate
    now = START + timedelta(days=1)
    new = renewed(ahead, NAME, now)
    assert new is not None
    assert new.authorities == bundle.authorities
    assert new.certificate.not_valid_before_utc == now - SKEW
    assert renewed(new, NAME, now) is None


def test_an_authority_of_a_clock_that_was_ahead_goes_and_what_was_shown_stays(
    bundle: Bundle,
) -> None:
    ahead = renewed(bundle, NAME, START + CA_LIFE * 0.7)
    assert ahead is not None
    assert len(ahead.authorities) == 2
    now = START + timedelta(days=1)
    new = renewed(ahead, NAME, now)
    assert new is not None
    assert ahead.authorities[0] not in new.authorities
    assert new.certificate == bundle.certificate
    assert signers(new) == [1]
    assert from_secret(new.to_secret()), "it is consistent"
    assert renewed(new, NAME, now) is None


def test_another_name_needs_another_certificate(bundle: Bundle) -> None:
    new = renewed(bundle, "other.mizar-system.svc", START)
    assert new is not None
    assert new.authorities == bundle.authorities


def test_a_long_service_name() -> None:
    name = f"{'a' * 63}.{'b' * 63}.svc"
    assert renewed(fresh(name, START), name, START) is None


def test_six_years_without_a_gap(bundle: Bundle) -> None:
    """With a look every other day, the certificate in use is always signed by an authority that was
    trusted two days ago, and is never near its end."""
    now, trusted = START, bundle.authorities
    for _ in range(365 * 3):
        now += timedelta(days=2)
        while (new := renewed(bundle, NAME, now)) is not None:
            if new.certificate != bundle.certificate:
                shown = new.certificate
                assert any(shown.issuer == one.subject for one in trusted), "shown before trusted"
            bundle = new
        assert signers(bundle)
        assert bundle.certificate.not_valid_after_utc - now > timedelta(days=20)
        assert len(bundle.authorities) <= 2
        trusted = bundle.authorities
    assert bundle.authorities[0].not_valid_before_utc > START + timedelta(days=700)
