//! What DynamoDB's refusals mean to a member: come again later, or call the
//! operator. Told apart by the service's error codes and the SDK's error kinds,
//! never by the text of a message.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::keeper::KeeperError;

pub(super) const NAME: &str = "DynamoDB";

/// What was asked of DynamoDB, and what an IAM policy must allow for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Get,
    BatchGet,
    Put,
    Update,
    Transact,
    Scan,
    DescribeTable,
    DescribeTtl,
    CreateTable,
    UpdateTtl,
}

impl Call {
    fn permission(self) -> &'static str {
        match self {
            Self::Get => "dynamodb:GetItem",
            Self::BatchGet => "dynamodb:BatchGetItem",
            Self::Put => "dynamodb:PutItem",
            Self::Update => "dynamodb:UpdateItem",
            // transactions have no action of their own: each of their parts is checked
            Self::Transact => "dynamodb:PutItem and dynamodb:UpdateItem",
            Self::Scan => "dynamodb:Scan",
            Self::DescribeTable => "dynamodb:DescribeTable",
            Self::DescribeTtl => "dynamodb:DescribeTimeToLive",
            Self::CreateTable => "dynamodb:CreateTable",
            Self::UpdateTtl => "dynamodb:UpdateTimeToLive",
        }
    }
}

pub(super) fn away(reason: impl Into<String>) -> KeeperError {
    KeeperError::Away { keeper: NAME, reason: reason.into() }
}

pub(super) fn busy(reason: impl Into<String>) -> KeeperError {
    KeeperError::Busy { keeper: NAME, reason: reason.into() }
}

pub(super) fn unusable(reason: impl Into<String>, remedy: impl Into<String>) -> KeeperError {
    KeeperError::Unusable { keeper: NAME, reason: reason.into(), remedy: remedy.into() }
}

pub(super) fn no_credentials() -> KeeperError {
    unusable(
        "no AWS credentials were found",
        "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the task, pod or \
         instance a role (any values will do for DynamoDB Local)",
    )
}

pub(super) fn no_region() -> KeeperError {
    unusable("no AWS region is set", "set AWS_REGION, or the region in the keeper's settings")
}

pub(super) fn wrong_schema(table: &str, found: &str) -> KeeperError {
    unusable(
        format!("the table {table} has the wrong key schema ({found})"),
        "it must have the one key pk, a string, as partition key: make a table of another name with \
         `forebay fleet setup dynamodb` and configure that",
    )
}

pub(super) fn no_table(table: &str) -> KeeperError {
    unusable(
        format!("there is no table {table} in this account and region"),
        "make it with `forebay fleet setup dynamodb`, or correct the table's name or the region",
    )
}

/// What a failed call means.
pub(super) fn explain<E>(table: &str, call: Call, error: &SdkError<E, HttpResponse>) -> KeeperError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match error {
        SdkError::TimeoutError(_) => away("no answer in time"),
        SdkError::ServiceError(context) => {
            by_code(table, call, error.code(), error.message(), context.raw().status().as_u16())
        }
        SdkError::ResponseError(context) => {
            away(format!("an unreadable answer, status {}", context.raw().status().as_u16()))
        }
        SdkError::DispatchFailure(failure) => {
            if let Some(cause) = credentials_error(error) {
                return without_credentials(cause);
            }
            let cause = failure.as_connector_error();
            if cause.is_some_and(|cause| cause.is_timeout()) {
                return away("no connection in time");
            }
            away(cause.map_or_else(|| "not reached".to_owned(), |cause| chain(cause)))
        }
        other => match credentials_error(other) {
            Some(cause) => without_credentials(cause),
            None => unusable(chain(other), "correct the keeper's settings"),
        },
    }
}

fn by_code(
    table: &str,
    call: Call,
    code: Option<&str>,
    message: Option<&str>,
    status: u16,
) -> KeeperError {
    let code = code.unwrap_or_default();
    let said = || format!("{code} {}", message.unwrap_or_default()).trim().to_owned();
    match code {
        "ResourceNotFoundException" => no_table(table),
        "AccessDeniedException" | "AccessDenied" => unusable(
            format!("access to the table {table} was denied"),
            format!(
                "allow {} on it in the IAM policy of this role; docs/fleet-dynamodb.md has the policies",
                call.permission()
            ),
        ),
        "UnrecognizedClientException"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "InvalidClientTokenId"
        | "IncompleteSignatureException"
        | "ExpiredTokenException"
        | "ExpiredToken" => unusable(
            format!("the AWS credentials were not accepted ({code})"),
            "use credentials that are valid in this region, and not expired",
        ),
        "InvalidSignatureException" | "RequestTimeTooSkewed" | "RequestExpired" => unusable(
            format!("the signature was not accepted ({code})"),
            "set this machine's clock by NTP (chrony), and check the secret access key",
        ),
        "ValidationException" if matches!(call, Call::DescribeTable | Call::CreateTable) => {
            unusable(said(), "correct the table's name")
        }
        "ValidationException" => wrong_schema(table, "a key was not accepted"),
        "ResourceInUseException" => busy(format!("the table {table} is being made or changed")),
        "ThrottlingException"
        | "ThrottlingError"
        | "Throttling"
        | "ProvisionedThroughputExceededException"
        | "ProvisionedThroughputExceeded"
        | "RequestLimitExceeded"
        | "LimitExceededException"
        | "TransactionConflictException"
        | "TransactionInProgressException"
        | "ReplicatedWriteConflictException" => busy(code),
        _ if status >= 500 => away(said()),
        _ => unusable(said(), "see what DynamoDB says; nothing is known of this error here"),
    }
}

fn credentials_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CredentialsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(cause) = error.downcast_ref() {
            return Some(cause);
        }
        next = error.source();
    }
    None
}

/// Whoever gives credentials may be away too.
pub(super) fn without_credentials(error: &CredentialsError) -> KeeperError {
    match error {
        CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => {
            away(format!("credentials could not be fetched: {}", chain(error)))
        }
        _ => no_credentials(),
    }
}

/// An error and what caused it, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(code: &str, call: Call) -> KeeperError {
        by_code("leases", call, Some(code), Some("text that is not looked at"), 400)
    }

    #[test]
    fn throttling_is_told_from_what_an_operator_must_mend() {
        for code in ["ThrottlingException", "ProvisionedThroughputExceededException"] {
            assert!(matches!(coded(code, Call::Update), KeeperError::Busy { .. }), "{code}");
        }
        for code in ["ResourceNotFoundException", "AccessDeniedException", "ValidationException"] {
            assert!(matches!(coded(code, Call::Get), KeeperError::Unusable { .. }), "{code}");
        }
        let failed = by_code("leases", Call::Get, Some("InternalServerError"), None, 500);
        assert!(matches!(failed, KeeperError::Away { .. }));
    }

    #[test]
    fn a_denied_call_names_the_permission_that_is_missing() {
        let text = coded("AccessDeniedException", Call::BatchGet).to_string();
        assert!(text.contains("dynamodb:BatchGetItem"), "{text}");
        assert!(text.contains("leases"), "{text}");
    }
}
