// Package e2e looks at the product from outside: scripts that a user could read drive
// kubectl and the plugin against a real cluster that the operator is deployed to.
//
// EXECSESSION_E2E_KUBECONFIG names the cluster and EXECSESSION_E2E_BIN the folder with
// kubectl and kubectl-execsession (`make test` sets both); tools.txtar wants the image of
// tools loaded (`make tools-image`). The scripts in
// testdata/script run side by side, each in its own namespace that enforces the
// restricted Pod Security Standard; those in testdata/disruptive stop the operator
// or its leader and run alone.
package e2e
