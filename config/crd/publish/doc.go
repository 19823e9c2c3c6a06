// Command publish takes the CRDs as controller-gen writes them and writes the two
// forms that the repository carries: plain ones in config/crd and templates in the
// chart. It leaves out the descriptions of types that Kubernetes owns and describes
// itself (affinity and the like), which are most of the size: with them a client-side
// apply would come close to the 262,144 bytes that an annotation may have.
//
//	publish -from DIR -crds config/crd -chart charts/execsession/templates/crds
package main
