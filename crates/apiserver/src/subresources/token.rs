//! `serviceaccounts/token`: issues a bound token.
