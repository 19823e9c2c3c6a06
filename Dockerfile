# The image of the operator and of the agent, the same that hack/images writes without a daemon.
#
#   docker build -t execsession.dev/execsession:dev .
#
# GO_IMAGE is any image with Go; test/dockerfile builds with one made of the machine's own, and no network.
ARG GO_IMAGE=golang:1.26.8

FROM ${GO_IMAGE} AS build
ARG GOPROXY
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X execsession.dev/agentd.Version=${VERSION} -X main.version=${VERSION}" -o /out/ ./cmd/manager ./cmd/agentd

FROM scratch
COPY --from=build /out/manager /out/agentd /
ENV PATH=/
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/manager"]
